"""Whether the rows kept on the device are still answered as well as when the policy was calibrated."""

from __future__ import annotations

import math
from dataclasses import replace

from upwell.shared.routing.calibration.binomial import interval
from upwell.shared.routing.estimators.anytime_bets import bet
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.value_classes import value_class

_CONFIDENCE = 0.95
_EPOCH = 2000
_ODDS = (1.5, 2.5, 5.0)
_MEMORY_ROWS = 1000


@value_class
class AuditAlarm:
    """How often the cloud disagrees with kept answers, and whether that breaks the promised risk. Immutable.

    Audited requests are a random sample of those kept on the device. For one with which the cloud disagrees, X is the
    share of rows kept at the time, for all others X = 0; so the mean of X is the share of all requests that are kept
    and disagreed with. That is an upper bound on the risk m = `max_risk` (kept, wrong, and right in the cloud): where
    the two differ, the cloud may be the one that is wrong. An alarm therefore means "look", not "broken".

    The alarm is a test by betting, so it may be read after every audit. As long as the mean of X is at most m, L_t =
    `bet(X_t, m, odds)` has a mean of at most 1. Here the odds are 1.5, 2.5 and 5. The bet may begin with any audit:
    with prior weight 1/2 on the first and 1/(2E) on each of the E of an epoch, the capital

    M_t = S_t + (weight of the audits to come),   S_t = (S_{t−1} + weight of t) L_t,

    averaged over the three bets, is a nonnegative supermartingale that begins at 1, and by Ville's inequality it ever
    reaches 1/δ with probability δ = 5 % at most: the rate of false alarms in a whole epoch, however often it is read.
    Later beginnings have weight too, since a model that was good for long has lost the bet that began with the first
    audit.

    After E = 2,000 audits all is forgotten and a new epoch begins; an alarm stays until a whole epoch was without one.

    States: `capitals` S_t of each bet; `kept_share` an average that forgets over about 1,000 rows; `raised` and
    `raised_before` say whether this epoch and the one before it had an alarm. `n` and `disagreed` are of this epoch.
    """

    max_risk: float
    n: int = 0
    disagreed: int = 0
    kept_share: float = 1.0
    rows: int = 0
    capitals: tuple[float, ...] = (0.0,) * len(_ODDS)
    raised: bool = False
    raised_before: bool = False

    @classmethod
    def start(cls, hard: HardSettings) -> AuditAlarm:
        """The tally before any audit; without a `max_risk` it counts and never raises an alarm."""
        return cls(hard.max_risk)

    def fits(self, hard: HardSettings) -> bool:
        """Whether it was started for this risk; after a change of the policy a new one must start."""
        return self.max_risk == hard.max_risk or (math.isnan(self.max_risk) and math.isnan(hard.max_risk))

    @property
    def alarm(self) -> bool:
        """Whether the share of requests that are kept and disagreed with is above `max_risk`, with 95 % confidence."""
        return self.raised or self.raised_before

    @property
    def low(self) -> float:
        """Lower end of the exact 95 % interval of the disagreement rate among kept requests (one look, this epoch)."""
        return interval(self.disagreed, self.n, _CONFIDENCE)[0]

    @property
    def high(self) -> float:
        """Upper end of that interval."""
        return interval(self.disagreed, self.n, _CONFIDENCE)[1]

    def saw(self, rows: int, kept: int) -> AuditAlarm:
        """The tally after `rows` rows of which the device kept `kept`, which turns the rate among those into a risk."""
        if rows <= 0:
            return self
        seen = self.rows + rows
        step = max(rows / seen, 1.0 - (1.0 - 1.0 / _MEMORY_ROWS) ** rows)
        kept_share = self.kept_share + step * (kept / rows - self.kept_share)
        return replace(self, kept_share=kept_share, rows=min(seen, _MEMORY_ROWS))

    def add(self, disagreed: bool) -> AuditAlarm:
        """The tally after one more audit."""
        if self.n == _EPOCH:
            fresh = AuditAlarm(self.max_risk, kept_share=self.kept_share, rows=self.rows, raised_before=self.raised)
            return fresh.add(disagreed)
        counted = replace(self, n=self.n + 1, disagreed=self.disagreed + disagreed)
        if math.isnan(self.max_risk) or self.max_risk >= 1.0:
            return counted
        risk = self.kept_share if disagreed else 0.0
        if self.max_risk == 0.0:
            return replace(counted, raised=self.raised or risk > 0)
        return counted._bet(risk)

    def _bet(self, risk: float) -> AuditAlarm:
        weight = 0.5 / _EPOCH + (0.5 if self.n == 1 else 0.0)
        to_come = 0.5 * (1.0 - self.n / _EPOCH)
        capitals = tuple(
            (capital + weight) * bet(risk, self.max_risk, odds)
            for capital, odds in zip(self.capitals, _ODDS, strict=True)
        )
        capital = sum(capitals) / len(capitals) + to_come
        return replace(self, capitals=capitals, raised=self.raised or capital >= 1.0 / (1.0 - _CONFIDENCE))

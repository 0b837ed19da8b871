"""The share of a model's rows that a fleet leaves to this device, of what all its devices may send together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from upwell.shared.routing.estimators.share import ShareController
from upwell.shared.routing.hardness import RISING
from upwell.shared.routing.policy.settings import HardSettings

BURST_ROWS = 64.0
"""Number of rows that may be offloaded beyond the share before the following ones must wait."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """At most the share `share` of a model's rows goes up, the hardest of them. Immutable.

    It only ever tightens what the policy says, in two ways. Of scored rows those are hard that lie beyond the policy's
    own threshold and beyond that of a `ShareController` which holds `share`; `controllers` has one for each scope of
    `HardSettings`, which counts what it would have sent itself. And whatever goes up (large rows, those of rules,
    hedges, retries, audits too) takes a token from a bucket that each row the device runs fills by `share`, up to
    `BURST_ROWS`: so over n rows run at most n · share + `BURST_ROWS` go up, and the rest of one message. Rows that only
    the cloud can answer take tokens, too, and go up all the same.

    A row that went up without having run here fills nothing, so where all go up at once the share held is
    share / (1 + share): never more than allowed.
    """

    share: float
    tokens: float
    controllers: Mapping[str, ShareController] = field(default_factory=dict)

    @classmethod
    def start(cls, share: float) -> Allowance:
        """Before any row was seen."""
        return cls(share, BURST_ROWS * share)

    def of_share(self, share: float) -> Allowance:
        """Another share from now on; what was spent stays spent."""
        anew = {scope: replace(one, target=share) for scope, one in self.controllers.items()}
        return Allowance(share, self.tokens, anew)

    @property
    def has_room(self) -> bool:
        """Whether a message may go up now."""
        return self.tokens >= 1.0

    def ran(self, rows: int) -> Allowance:
        """After the device has run so many rows."""
        return replace(self, tokens=min(BURST_ROWS, self.tokens + self.share * rows))

    def sent(self, rows: int) -> Allowance:
        """After a message of so many rows began to leave."""
        return replace(self, tokens=self.tokens - rows)

    def scored(self, hard: HardSettings, rows: int, large: int, hardness: tuple[float, ...]) -> Allowance:
        """After rows were scored, as a `ShareController` is told."""
        held = self.controllers.get(hard.scope)
        if held is None or (held.measure, held.initial) != (hard.measure, hard.threshold):
            held = ShareController(self.share, hard.measure, hard.threshold, self.share)
        return replace(self, controllers={**self.controllers, hard.scope: held.observe(rows, large, hardness)})

    def tightened(self, hard: HardSettings, threshold: float) -> float:
        """The threshold beyond which fewer rows lie: the one given, or the one that holds the share."""
        held = self.controllers.get(hard.scope)
        if held is None or (held.measure, held.initial) != (hard.measure, hard.threshold):
            return threshold
        return max(threshold, held.threshold) if hard.measure in RISING else min(threshold, held.threshold)

"""The share of a model's rows that a fleet allows this device to offload, from a budget of all devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from upwell.shared.routing.estimators.offload_share import ShareController
from upwell.shared.routing.hardness import RISING
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.value_classes import value_class

BURST_ROWS = 64.0
"""Number of rows that may be offloaded beyond the share before the following ones must wait."""


@value_class
class Allowance:
    """Limits offloading to the share `share` of a model's rows, the hardest of them. Immutable.

    It only ever tightens the policy, in two ways. Scored rows are hard if they lie beyond both the policy's own
    threshold and that of a `ShareController` which holds `share`; `controllers` has one for each scope of
    `HardSettings`, which counts what it would have sent itself. And every offloaded row (large rows, those of rules,
    hedges, retries and audits too) takes a token from a bucket that each row run on the device fills by `share`, up to
    `BURST_ROWS`: so of n rows run, at most n · share + `BURST_ROWS` are offloaded, plus the rest of one message. Rows
    that only the cloud can answer take tokens too, but are always offloaded.

    A row that was offloaded without having run here fills nothing, so if all are offloaded at once the share held is
    share / (1 + share): never more than allowed.
    """

    share: float
    tokens: float
    controllers: Mapping[str, ShareController] = field(default_factory=dict)

    @classmethod
    def start(cls, share: float) -> Allowance:
        """The state before any row."""
        return cls(share, BURST_ROWS * share)

    def of_share(self, share: float) -> Allowance:
        """The same with another share from now on; spent tokens stay spent."""
        anew = {scope: replace(one, target=share) for scope, one in self.controllers.items()}
        return Allowance(share, self.tokens, anew)

    @property
    def has_room(self) -> bool:
        """Whether a message may be offloaded now."""
        return self.tokens >= 1.0

    def ran(self, rows: int) -> Allowance:
        """The state after the device ran this many rows."""
        return replace(self, tokens=min(BURST_ROWS, self.tokens + self.share * rows))

    def sent(self, rows: int) -> Allowance:
        """The state after a message of this many rows began to leave."""
        return replace(self, tokens=self.tokens - rows)

    def scored(self, hard: HardSettings, rows: int, large: int, hardness: tuple[float, ...]) -> Allowance:
        """The state after rows were scored, as for a `ShareController`."""
        held = self.controllers.get(hard.scope)
        if held is None or (held.measure, held.initial) != (hard.measure, hard.threshold):
            held = ShareController(self.share, hard.measure, hard.threshold, self.share)
        return replace(self, controllers={**self.controllers, hard.scope: held.observe(rows, large, hardness)})

    def tightened(self, hard: HardSettings, threshold: float) -> float:
        """The stricter threshold: the given one, or the one that holds the share."""
        held = self.controllers.get(hard.scope)
        if held is None or (held.measure, held.initial) != (hard.measure, hard.threshold):
            return threshold
        return max(threshold, held.threshold) if hard.measure in RISING else min(threshold, held.threshold)

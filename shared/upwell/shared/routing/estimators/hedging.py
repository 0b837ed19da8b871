"""Second requests: when one is worth sending, and how many there may be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from upwell.shared.routing.estimators.latency import AnswerTimes
from upwell.shared.routing.policy.settings import HedgeSettings


@dataclass(frozen=True, slots=True)
class HedgeAccount:
    """Tokens for hedges: each request that goes up earns a share of one, each hedge costs one (a token bucket).

    Since it starts empty, hedges are never more than that share of the requests; `BURST` bounds what quiet times save
    up for a bad one.
    """

    BURST: ClassVar[float] = 10.0

    tokens: float = 0.0

    def earn(self, share: float) -> HedgeAccount:
        """With one more request gone up, of which that share may be hedged."""
        return HedgeAccount(min(self.BURST, self.tokens + share))

    def spend(self) -> HedgeAccount | None:
        """With one hedge paid for; None where there is too little. A rounding error is forgiven."""
        return HedgeAccount(max(0.0, self.tokens - 1.0)) if self.tokens >= 1.0 - 1e-9 else None


def hedge_after_s(settings: HedgeSettings | None, times: AnswerTimes | None, available_s: float) -> float:
    """After how long without an answer a second request is worth sending; infinite where it never is.

    It must be sooner than `available_s`, when nobody waits any more (Dean & Barroso, "The Tail at Scale", 2013).
    """
    if settings is None or settings.at_most <= 0.0:
        return math.inf
    after_s = settings.after_s
    if math.isnan(after_s):
        after_s = math.inf if times is None else times.quantile_s(settings.after_quantile)
    return after_s if after_s < available_s else math.inf

"""Hedges: when a second request pays, and how many there may be."""

from __future__ import annotations

import math

from upwell.shared.routing.estimators.run_and_answer_times import AnswerTimes
from upwell.shared.routing.estimators.token_bucket import TokenBucket
from upwell.shared.routing.policy.settings import HedgeSettings

NO_HEDGES = TokenBucket(level=0.0)
"""The initial bucket of a model: each offloaded request earns a share of a token, each hedge costs one.

It starts empty, so hedges are never more than that share of the requests."""

HEDGE_BURST = 10.0
"""Maximum number of saved tokens."""

_ONE_HEDGE = 1.0 - 1e-9  # tolerates rounding errors of the shares


def paid_hedge(tokens: TokenBucket) -> TokenBucket | None:
    """With one hedge paid for; None if there are too few tokens."""
    return tokens.take() if tokens.level >= _ONE_HEDGE else None


def hedge_after_s(settings: HedgeSettings | None, times: AnswerTimes | None, available_s: float) -> float:
    """Seconds without an answer after which a hedge pays; infinite if it never does.

    It must be less than `available_s`, when the wait ends (Dean & Barroso, "The Tail at Scale", 2013).
    """
    if settings is None or settings.at_most <= 0.0:
        return math.inf
    after_s = settings.after_s
    if math.isnan(after_s):
        after_s = math.inf if times is None else times.quantile_s(settings.after_quantile)
    return after_s if after_s < available_s else math.inf

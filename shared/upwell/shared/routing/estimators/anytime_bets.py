"""Bets against a bound on a mean: the arithmetic of all anytime-valid tests here."""

from __future__ import annotations


def with_odds(mean: float, odds: float) -> float:
    """The mean with `odds` times the odds of `mean`: q with q / (1 − q) = odds · m / (1 − m)."""
    return odds * mean / (1.0 - mean + odds * mean)


def bet(x: float, bound: float, odds: float) -> float:
    """The factor by which a bet that the mean of X in [0, 1] is above `bound`, in (0, 1), multiplies its capital.

    Waudby-Smith & Ramdas 2024, "Estimating means of bounded random variables by betting" (arXiv 2010.09686):

    L(x) = 1 + λ(x − m),   λ = (q − m) / (m(1 − m)),   q = `with_odds(m, odds)`.

    If the mean of X given the past is at most m, the mean of L is at most 1. So a capital that begins at 1 is a
    nonnegative supermartingale, and by Ville's inequality (1939) it ever reaches 1/δ with probability δ at most,
    however often it is read. For an X of 0 or 1 it is the likelihood ratio of q to m. `bound` may depend on the past
    too.
    """
    aim = with_odds(bound, odds)
    return 1.0 + (aim - bound) / (bound * (1.0 - bound)) * (x - bound)

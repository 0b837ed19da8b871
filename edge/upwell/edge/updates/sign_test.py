"""A test, open to a look after every request, of whether one of two versions is the worse one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from upwell.shared.routing.calibration.binomial import at_most


@dataclass(frozen=True, slots=True)
class SignTest:
    """Requests on which two versions differ: `worse` where the new one came off worse, `better` where the former did.

    As long as the new version is no worse, each of these is a `worse` with a chance p of at most 1/2, whatever came
    before. Held against every p above 1/2 at once, with equal weight, the n = worse + better of them have the
    likelihood ratio

        E_n = 2 ∫_{1/2}^{1} p^worse (1 − p)^better dp / (1/2)^n = 2^{n+1} B(worse + 1, better + 1) P(X ≤ worse),

    B the beta function, X ~ Binomial(n + 1, 1/2). E_n is a nonnegative supermartingale that begins at 1, so by Ville's
    inequality (1939) it ever reaches 1/δ with probability δ at most, however often one looks (Robbins 1970,
    "Statistical methods related to the law of the iterated logarithm"; pairs alone that differ: McNemar 1947).
    """

    worse: int = 0
    better: int = 0

    def add(self, *, is_worse: bool) -> SignTest:
        """The test after one more request on which the two differ."""
        if is_worse:
            return replace(self, worse=self.worse + 1)
        return replace(self, better=self.better + 1)

    @property
    def evidence(self) -> float:
        """ln E_n: what speaks against the new version; 0 without a request."""
        count = self.worse + self.better
        beta = math.lgamma(self.worse + 1) + math.lgamma(self.better + 1) - math.lgamma(count + 2)
        tail = at_most(self.worse, count + 1, 0.5)
        return (count + 1) * math.log(2.0) + beta + math.log(tail) if tail > 0.0 else -math.inf

    def rejects(self, error_rate: float) -> bool:
        """Whether the new version is worse; of those that are not, at most the share `error_rate` is ever rejected."""
        return self.evidence >= -math.log(error_rate)

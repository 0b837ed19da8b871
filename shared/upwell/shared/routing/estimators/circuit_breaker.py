"""The circuit breaker: after repeated failures the cloud is not asked for a while, then probed with one request."""

from __future__ import annotations

import math
from dataclasses import replace
from enum import Enum
from typing import ClassVar

from upwell.shared.value_classes import value_class


class BreakerVerdict(Enum):
    """The breaker's verdict on one request for the cloud."""

    ALLOW = "allow"
    PROBE = "probe"
    """The cloud may be back: one request probes it, if it gets the only slot (`take_probe`)."""
    REFUSE = "refuse"


@value_class
class Breaker:
    """Closed, open or half open (Nygard, "Release It!", ch. 5), as a value with time as an argument.

    Closed: `FAILURES` failures in a row open it. Open: requests are refused for `wait_s`, which doubles with each
    failed probe from `FIRST_WAIT_S` up to `LONGEST_WAIT_S`. Then half open: one probe at a time; its success closes the
    breaker, its failure opens it again. A probe without a report is forgotten after `PROBE_TIMEOUT_S`.

    A timeout only says that the cloud takes longer than that caller could wait. So the longest such wait is kept as
    `patience_s` (infinite for failures of other kinds), and a request that can wait `MORE_PATIENT` times as long
    passes. The wait of the last probe is kept as `probed_s`: a request that can wait that much longer need not sit out
    what a hasty probe's failure added, and probes at once. So callers in a hurry cut nobody off who is not.
    Nor do callers with much to send those with little: `least_bytes` is the smallest message that timed out (0 after a
    failure of another kind), and one `SMALLER` times smaller passes. One that is that much smaller than the last probe,
    `probed_bytes`, waits no longer than `FIRST_WAIT_S` after it: a link that came back weak carries the small ones. So
    the next probe has at most `probed_bytes` · 2^(t/`wait_s`) bytes, t seconds after the last was late: smaller ones
    first, and much larger ones only where no other came. One that `tries_link`, being among the smallest of all that
    comes, is held back until `FIRST_WAIT_S` after the last probe was sent: with nothing smaller to wait for, it is the
    best probe there is, and a larger one that was late says little about it.
    Of messages under `SIZE_MATTERS_BYTES`, which a connection sends at once, none is late for its size.
    """

    FAILURES: ClassVar[int] = 3
    LEAST_WEIGHT: ClassVar[float] = 0.25
    FIRST_WAIT_S: ClassVar[float] = 0.5
    LONGEST_WAIT_S: ClassVar[float] = 2.0
    PROBE_TIMEOUT_S: ClassVar[float] = 30.0
    MORE_PATIENT: ClassVar[float] = 2.0
    SMALLER: ClassVar[float] = 2.0
    SIZE_MATTERS_BYTES: ClassVar[int] = 16_384

    failures: float = 0.0
    wait_s: float = 0.0
    open_until_s: float = -math.inf
    probe_since_s: float = -math.inf
    patience_s: float = 0.0
    probed_s: float = 0.0
    least_bytes: float = math.inf
    probed_bytes: float = 0.0
    failed_s: float = -math.inf

    @property
    def is_open(self) -> bool:
        """Whether it is open or half open: the latest news of the cloud is a failure."""
        return self.wait_s > 0.0

    @property
    def is_of_size(self) -> bool:
        """Whether all failures were timeouts of messages so large that the link may have been too slow for them."""
        return self.SIZE_MATTERS_BYTES <= self.least_bytes < math.inf

    def admit(
        self, now_s: float, wait_s: float, size_bytes: float = math.inf, *, tries_link: bool = False
    ) -> BreakerVerdict:
        """Whether a request of so many bytes that can wait `wait_s` for its answer may go up now."""
        if not self.is_open or wait_s > self.patience_s * self.MORE_PATIENT:
            return BreakerVerdict.ALLOW
        if self.is_of_size and size_bytes * self.SMALLER <= self.least_bytes:
            return BreakerVerdict.ALLOW
        if not self.has_slot(now_s):
            return BreakerVerdict.REFUSE
        if wait_s > self.probed_s * self.MORE_PATIENT:
            return BreakerVerdict.PROBE
        is_smallest = tries_link and self.is_of_size
        is_smaller = is_smallest or size_bytes * self.SMALLER <= self.probed_bytes >= self.SIZE_MATTERS_BYTES
        first_wait_s = max(0.0, self.FIRST_WAIT_S - self.probed_s) if is_smallest else self.FIRST_WAIT_S
        again_s = min(self.open_until_s, self.failed_s + first_wait_s) if is_smaller else self.open_until_s
        is_too_large = self.is_of_size and not is_smallest and size_bytes > self._most_bytes(now_s)
        is_due = now_s >= again_s and not is_too_large
        return BreakerVerdict.PROBE if is_due else BreakerVerdict.REFUSE

    def _most_bytes(self, now_s: float) -> float:
        doublings = max(0.0, now_s - self.failed_s) / self.wait_s
        return float(self.probed_bytes * 2.0 ** min(doublings, 64.0))

    def has_slot(self, now_s: float) -> bool:
        """Whether no probe is in progress."""
        return now_s - self.probe_since_s >= self.PROBE_TIMEOUT_S

    def take_probe(self, now_s: float) -> Breaker:
        """With the probe's slot taken; check `has_slot` first."""
        return replace(self, probe_since_s=now_s)

    def release_probe(self) -> Breaker:
        """With the probe's slot free again and nothing learnt, because the caller left before an answer came."""
        return replace(self, probe_since_s=-math.inf)

    def failed(
        self, now_s: float, waited_s: float = math.inf, size_bytes: float = 0.0, *, weight: float = 1.0
    ) -> Breaker:
        """With one more failure counted, and open if there were enough; `waited_s` is that of a timeout.

        A call whose chance of being in time was `weight` counts only as much, at least `LEAST_WEIGHT`.
        """
        failures = self.failures + max(self.LEAST_WEIGHT, weight)
        patience_s = max(self.patience_s, waited_s)
        least_bytes = min(self.least_bytes, size_bytes) if waited_s < math.inf else 0.0
        if not self.is_open and failures < self.FAILURES - 1e-6:
            return replace(self, failures=failures, patience_s=patience_s, least_bytes=least_bytes)
        wait_s = min(self.LONGEST_WAIT_S, self.wait_s * 2 or self.FIRST_WAIT_S)
        probed_s, probed_bytes = (waited_s, size_bytes) if self.is_open else (patience_s, least_bytes)
        return Breaker(
            failures, wait_s, now_s + wait_s,
            patience_s=patience_s, probed_s=probed_s, least_bytes=least_bytes, probed_bytes=probed_bytes,
            failed_s=now_s,
        )  # fmt: skip

    def heartened(self, now_s: float) -> Breaker:
        """Open, but ready for a probe at once: something else showed that the cloud can be reached again.

        The wait begins anew at `FIRST_WAIT_S`, as TCP's time-out does after a new round trip (RFC 6298, section 5): it
        doubled for the silence, which is over. So larger messages follow soon where the link is back whole.
        """
        return replace(self, open_until_s=min(self.open_until_s, now_s), wait_s=self.FIRST_WAIT_S)

    def outlasted(self, waited_s: float, size_bytes: float = 0.0) -> Breaker:
        """With the timeout of a caller that passed an open breaker."""
        patience_s, probed_s = max(self.patience_s, waited_s), max(self.probed_s, waited_s)
        least_bytes = min(self.least_bytes, size_bytes)
        return replace(self, patience_s=patience_s, probed_s=probed_s, least_bytes=least_bytes)


CLOSED = Breaker()
"""A breaker without failures: the initial state, and the state after a success."""

"""A new version of a model on trial: the version before answers where the new one fails, and comes back if it must."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from upwell.shared.errors import InvalidRequest, ModelFailed
from upwell.shared.tensors import Array

RUNS = 200
"""A new version has proven itself after so many runs, once it was compared often enough."""
DURATION_S = 600.0
"""Or, however few there were, after so long."""
MIN_FAILURES = 3
MAX_FAILED_SHARE = 0.05
"""It is rejected once so many runs, and more than this share of all of them, have failed."""

_LATE = "an answer that came too late, and would not have before"

T = TypeVar("T")
_Answer = TypeVar("_Answer", contravariant=True)
_Run = Callable[[Mapping[str, Array]], T]
_log = logging.getLogger(__name__)


class Comparison(Protocol[_Answer]):
    """How the answers of two versions compare; see `upwell.edge.updates.comparing`. Safe to use from many threads."""

    @property
    def is_complete(self) -> bool:
        """Whether the versions were compared often enough to rely on the new one."""

    def flaw(self, answer: _Answer) -> str:
        """What makes an answer none, in a sentence; empty for one that is."""

    def offer(self, inputs: Mapping[str, Array], answer: _Answer, judge: Callable[[], None]) -> None:
        """Compare this answer of the new version, if it is time for one more, beside the requests; then `judge`."""

    def complaint(self) -> str:
        """Why the new version is worse than the one before; empty as long as that cannot be said."""


class Flawed(ModelFailed):
    """An answer that no model should give; its text names outputs and nothing of a request."""


def _shown(failure: Exception | None) -> str:
    """A failure by its kind: its text may repeat what the request held, and this goes into logs and `/health`."""
    return str(failure) if isinstance(failure, Flawed) else type(failure).__name__


class Trial(Generic[T]):
    """Counts how the runs of a new version end, and compares its answers. Safe to use from many threads.

    `former` runs the version before, which takes `former_s` seconds (infinite where that is not known). Of `reject`,
    with the reason, and `prove` one is called, once, on the thread of a request or of a comparison; it must return at
    once. Once the new version `is_proven` the trial, and with it the former version, can be forgotten. Without a
    `comparison` only failures count.
    """

    def __init__(
        self,
        former: _Run[T],
        reject: Callable[[str], None],
        prove: Callable[[], None],
        comparison: Comparison[T] | None = None,
        former_s: float = math.inf,
    ) -> None:
        self._former = former
        self._former_s = former_s
        self._reject = reject
        self._prove = prove
        self._comparison = comparison
        self._lock = threading.Lock()
        self._began_s = time.monotonic()
        self._runs = 0
        self._failures = 0
        self._last_failure: Exception | None = None
        self.is_rejected = False
        self.is_proven = False

    @property
    def is_over(self) -> bool:
        """Whether the version was rejected or has proven itself."""
        return self.is_rejected or self.is_proven

    def run(self, new: _Run[T], inputs: Mapping[str, Array], deadline_s: float = math.inf) -> T:
        """The new version's answer, or that of the former one where the new one fails. Raises what `new` raises.

        An answer after the deadline (monotonic) counts as a failure where the former version had answered in time.
        """
        began_s = time.monotonic()
        try:
            answer = new(inputs)
        except Exception as error:  # noqa: BLE001  whatever it is: nobody has run this version on requests before
            return self._stand_in(inputs, error)
        comparison = self._comparison
        flaw = comparison.flaw(answer) if comparison is not None else ""
        if flaw:
            return self._better_one(inputs, answer, flaw)
        is_late = began_s + self._former_s <= deadline_s < time.monotonic()
        self._note(Flawed(_LATE) if is_late else None)
        if comparison is not None and not self.is_over:
            comparison.offer(inputs, answer, self.judge)
        return answer

    def judge(self) -> None:
        """End the trial if it is decided."""
        comparison = self._comparison
        complaint = comparison.complaint() if comparison is not None else ""
        is_complete = comparison is None or comparison.is_complete
        with self._lock:
            if self.is_over:
                return
            if self._failures >= MIN_FAILURES and self._failures > MAX_FAILED_SHARE * self._runs:
                counted = f"{self._failures} of its first {self._runs} runs failed"
                complaint = f"{counted}, the last with {_shown(self._last_failure)}"
            is_long = time.monotonic() - self._began_s >= DURATION_S
            is_good = not complaint and ((self._runs >= RUNS and is_complete) or is_long)
            self.is_rejected, self.is_proven = bool(complaint), is_good
        if complaint:
            self._reject(complaint)
        elif is_good:
            _log.info("a new version has proven itself: %d of %d runs failed", self._failures, self._runs)
            self._prove()

    def give_up(self, reason: str) -> bool:
        """Condemn the version, whatever it did; False where the trial is over already."""
        with self._lock:
            if self.is_over:
                return False
            self.is_rejected = True
        self._reject(reason)
        return True

    def end(self) -> None:
        """Judge no more, and tell nobody: the version is left. What is under way still has the former one behind it."""
        with self._lock:
            self.is_rejected = True

    def _stand_in(self, inputs: Mapping[str, Array], error: Exception) -> T:
        """What fails in both versions is not the new one's fault: the request was bad, or the device is."""
        try:
            answer = self._former(inputs)
        except Exception as former_error:  # noqa: BLE001  the new version's is the one to tell
            if isinstance(former_error, InvalidRequest) and not isinstance(error, InvalidRequest):
                self._note(error)  # the former version takes other inputs
            raise error from None
        self._note(error)
        return answer

    def _better_one(self, inputs: Mapping[str, Array], answer: T, flaw: str) -> T:
        """The former version's answer where that has no flaw, which then counts as a failure of the new one."""
        assert self._comparison is not None  # noqa: S101  who else found the flaw
        try:
            former = self._former(inputs)
        except Exception:  # noqa: BLE001  then the new version's answer is the better one
            return answer
        if self._comparison.flaw(former):
            return answer
        self._note(Flawed(flaw))
        return former

    def _note(self, failure: Exception | None) -> None:
        with self._lock:
            if self.is_over:
                return
            self._runs += 1
            if failure is not None:
                self._failures, self._last_failure = self._failures + 1, failure
        self.judge()

"""The trial of a new model version: the previous version stands in for its failures and can be restored."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from upwell.shared.errors import DeadlineExceeded, InvalidRequest, ModelFailed, Refused
from upwell.shared.tensors import Array

RUNS = 200
"""Number of runs after which a new version has proven itself, once it was compared often enough."""
DURATION_S = 600.0
"""Time after which it has proven itself with fewer runs, and for which late answers that speak against it count."""
MIN_FAILURES = 3
MAX_FAILED_SHARE = 0.05
"""It is rejected once this many runs, and more than this share of all runs, have failed."""

T = TypeVar("T")
_Answer = TypeVar("_Answer", contravariant=True)
_Run = Callable[[Mapping[str, Array]], T]
_log = logging.getLogger(__name__)


class Comparison(Protocol[_Answer]):
    """Compares the answers of two versions; see `version_comparison`. Thread-safe."""

    @property
    def is_complete(self) -> bool:
        """Whether the versions were compared often enough to trust the new one."""

    def flaw(self, answer: _Answer) -> str:
        """Why an answer is invalid, in a sentence; empty if it is valid."""

    def offer(self, inputs: Mapping[str, Array], answer: _Answer, judge: Callable[[], None]) -> None:
        """Compare this answer of the new version in the background, if one is due; then call `judge`."""

    @property
    def is_suspect(self) -> bool:
        """Whether late answers speak against the new version, if not yet enough to reject it."""

    def late(self, *, is_new: bool) -> None:
        """An answer came late; `is_new` says which version gave it, as a coin had decided."""

    def complaint(self) -> str:
        """Why the new version is worse than the previous one; empty while that is not established."""


class Flawed(ModelFailed):
    """An invalid answer; the text names outputs but nothing of the request."""


def _shown(failure: Exception | None) -> str:
    """The kind of a failure: its text may repeat the request's content, and this goes into logs and `/health`."""
    return str(failure) if isinstance(failure, Flawed) else type(failure).__name__


class Trial(Generic[T]):
    """Counts the outcomes of a new version's runs, and compares its answers. Thread-safe.

    `former` runs the previous version, which takes `former_s` seconds (infinite if unknown). Exactly one of `reject`
    (with the reason) and `prove` is called, once, on the thread of a request or a comparison; it must return at once.
    Once the new version `is_proven`, the trial and the previous version can be dropped. Without a `comparison` only
    failures count.

    An answer may be late for other reasons than the version, above all on a busy device. So from the first late one on
    a coin decides which version answers. If the version makes no difference, that of each late answer is a fair coin,
    whatever made it late and whenever: the randomization test of Fisher 1935, "The Design of Experiments", chapter 2.
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
        self._is_tossing = False
        self._late_at_s = -math.inf
        self.is_rejected = False
        self.is_proven = False

    @property
    def is_over(self) -> bool:
        """Whether the version was rejected or has proven itself."""
        return self.is_rejected or self.is_proven

    def run(self, new: _Run[T], inputs: Mapping[str, Array], deadline_s: float = math.inf) -> T:
        """The new version's answer, or the previous one's if the new one fails or a coin decides so. Raises what `new`
        raises.

        Answers after the deadline (monotonic) count if the previous version could be in time on an idle device.
        """
        can_be_in_time = time.monotonic() + self._former_s <= deadline_s
        is_tossed = self._is_tossing and can_be_in_time and not self.is_over
        if is_tossed and random.random() < 0.5:  # noqa: S311  a coin, and no secret
            answer = self._former_first(inputs)
            if answer is not None:
                self._note_time(deadline_s, is_new=False)
                return answer
            is_tossed = False
        try:
            answer = new(inputs)
        except (DeadlineExceeded, Refused):  # preparing the inputs took too long, and would again
            raise
        except Exception as error:  # noqa: BLE001  whatever it is: nobody has run this version on requests before
            return self._stand_in(inputs, error)
        comparison = self._comparison
        flaw = comparison.flaw(answer) if comparison is not None else ""
        if flaw:
            return self._better_one(inputs, answer, flaw)
        if is_tossed:
            self._note_time(deadline_s, is_new=True)
        elif can_be_in_time and time.monotonic() > deadline_s:
            self._is_tossing = True  # not counted itself: no coin decided that this version answers
        self._note(None)
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
            now_s = time.monotonic()
            is_suspect = comparison is not None and comparison.is_suspect and now_s - self._late_at_s < DURATION_S
            is_long = now_s - self._began_s >= DURATION_S and not is_suspect
            is_good = not complaint and ((self._runs >= RUNS and is_complete) or is_long)
            self.is_rejected, self.is_proven = bool(complaint), is_good
        if complaint:
            self._reject(complaint)
        elif is_good:
            _log.info("a new version has proven itself: %d of %d runs failed", self._failures, self._runs)
            self._prove()

    def give_up(self, reason: str) -> bool:
        """Reject the version regardless of its runs; False if the trial is already over."""
        with self._lock:
            if self.is_over:
                return False
            self.is_rejected = True
        self._reject(reason)
        return True

    def end(self) -> None:
        """End the trial without a verdict, since the version is being replaced. Runs in progress keep their
        stand-in."""
        with self._lock:
            self.is_rejected = True

    def _former_first(self, inputs: Mapping[str, Array]) -> T | None:
        """The previous version's answer; None if it fails, since it may take other inputs."""
        try:
            return self._former(inputs)
        except Exception:  # noqa: BLE001  the new version is asked next
            return None

    def _note_time(self, deadline_s: float, *, is_new: bool) -> None:
        """Count an answer of the version that a coin chose, if it came late."""
        now_s = time.monotonic()
        if self._comparison is not None and now_s > deadline_s:
            self._late_at_s = now_s
            self._comparison.late(is_new=is_new)
            self.judge()

    def _stand_in(self, inputs: Mapping[str, Array], error: Exception) -> T:
        """The previous version's answer. A failure in both is not the new one's fault: the request or the device is
        bad."""
        try:
            answer = self._former(inputs)
        except Exception as former_error:  # noqa: BLE001  the new version's is the one to tell
            if isinstance(former_error, InvalidRequest) and not isinstance(error, InvalidRequest):
                self._note(error)  # the previous version takes other inputs
            raise error from None
        self._note(error)
        return answer

    def _better_one(self, inputs: Mapping[str, Array], answer: T, flaw: str) -> T:
        """The previous version's answer if that is valid, which then counts as a failure of the new one."""
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

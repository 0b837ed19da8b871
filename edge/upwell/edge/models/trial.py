"""A new version of a model on trial: the version before answers where the new one fails, and comes back if it must."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from upwell.shared.errors import InvalidRequest
from upwell.shared.tensors import Array

RUNS = 200
"""A new version has proven itself after so many runs."""
DURATION_S = 600.0
"""Or, however few there were, after so long."""
MIN_FAILURES = 3
MAX_FAILED_SHARE = 0.05
"""It is condemned once so many runs, and more than this share of all of them, have failed."""

T = TypeVar("T")
_Run = Callable[[Mapping[str, Array]], T]
_log = logging.getLogger(__name__)


class Trial(Generic[T]):
    """Counts how the runs of a new version end. Safe to use from many threads.

    `former` runs the version before. Of `condemn`, with the reason, and `prove` one is called, once, on the thread of a
    request; it must return at once. Once the new version `is_proven` the trial, and with it the former version, can be
    forgotten.
    """

    def __init__(self, former: _Run[T], condemn: Callable[[str], None], prove: Callable[[], None]) -> None:
        self._former = former
        self._condemn = condemn
        self._prove = prove
        self._lock = threading.Lock()
        self._began_s = time.monotonic()
        self._runs = 0
        self._failures = 0
        self.is_condemned = False
        self.is_proven = False

    def run(self, new: _Run[T], inputs: Mapping[str, Array]) -> T:
        """The new version's answer, or that of the former one where the new one fails. Raises what `new` raises."""
        try:
            answer = new(inputs)
        except Exception as error:  # noqa: BLE001  whatever it is: nobody has run this version on requests before
            return self._stand_in(inputs, error)
        self._note(None)
        return answer

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

    def _note(self, failure: Exception | None) -> None:
        with self._lock:
            if self.is_condemned or self.is_proven:
                return
            self._runs += 1
            self._failures += failure is not None
            is_bad = self._failures >= MIN_FAILURES and self._failures > MAX_FAILED_SHARE * self._runs
            lasted = self._runs >= RUNS or time.monotonic() - self._began_s >= DURATION_S
            is_good = lasted and not is_bad
            self.is_condemned, self.is_proven = is_bad, is_good
        if is_bad:
            self._condemn(
                f"{self._failures} of its first {self._runs} runs failed, the last with {type(failure).__name__}"
            )
        elif is_good:
            _log.info("a new version has proven itself: %d of %d runs failed", self._failures, self._runs)
            self._prove()

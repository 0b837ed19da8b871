"""A new version of a model on trial: the version before answers where the new one fails, and comes back if it must."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from upwell.shared.errors import ModelFailed, UpwellError
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

    `former` runs the version before; `condemn` is called once, on the thread of a request, with the reason, and must
    return at once. Once the new version `is_proven` the trial, and with it the former version, can be forgotten.
    """

    def __init__(self, former: _Run[T], condemn: Callable[[str], None]) -> None:
        self._former = former
        self._condemn = condemn
        self._lock = threading.Lock()
        self._began_s = time.monotonic()
        self._runs = 0
        self._failures = 0
        self._is_over = False
        self.is_proven = False

    def run(self, new: _Run[T], inputs: Mapping[str, Array]) -> T:
        """The new version's answer, or that of the former one where the new one fails. Raises what `new` raises."""
        try:
            answer = new(inputs)
        except ModelFailed as error:
            self._note(error)
            try:
                return self._former(inputs)
            except UpwellError:  # it takes other inputs, or it was the request
                raise error from None
        self._note(None)
        return answer

    def _note(self, failure: ModelFailed | None) -> None:
        with self._lock:
            if self._is_over:
                return
            self._runs += 1
            self._failures += failure is not None
            is_bad = self._failures >= MIN_FAILURES and self._failures > MAX_FAILED_SHARE * self._runs
            self.is_proven = not is_bad and (self._runs >= RUNS or time.monotonic() - self._began_s >= DURATION_S)
            self._is_over = is_bad or self.is_proven
        if is_bad:
            self._condemn(f"{self._failures} of its first {self._runs} runs failed, the last with: {failure}")
        elif self.is_proven:
            _log.info("a new version has proven itself: %d of %d runs failed", self._failures, self._runs)

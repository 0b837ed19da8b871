"""How many calls this process has answered with an error, by status: counted at every way in, whoever serves there.

What reaches a `Dataplane` can be counted there. This counts the others as well: calls without a known token, for models
that the caller may not use, or with a message that cannot be read. It costs nothing where there is no error.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

_lock = threading.Lock()
_counts: Counter[str] = Counter()


def note_error_answer(status: str) -> None:
    """One more call, or message of a stream, is answered with an error: gRPC's name of it, or `HTTP 404` and such."""
    with _lock:
        _counts[status] += 1


def errors_by_status() -> Mapping[str, int]:
    """So many since the process began."""
    with _lock:
        return dict(_counts)

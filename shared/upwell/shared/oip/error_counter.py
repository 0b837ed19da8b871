"""Counts the calls that this process answered with an error, by status, at every server.

Calls that reach a `Dataplane` can be counted there. This also counts the others: without a known token, for models that
the caller may not use, or with an unreadable message. It costs nothing if there is no error.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

_lock = threading.Lock()
_counts: Counter[str] = Counter()


def note_error_answer(status: str) -> None:
    """Count a call, or message of a stream, that is answered with an error: gRPC's name, or `HTTP 404` and such."""
    with _lock:
        _counts[status] += 1


def errors_by_status() -> Mapping[str, int]:
    """The counts since the process began."""
    with _lock:
        return dict(_counts)

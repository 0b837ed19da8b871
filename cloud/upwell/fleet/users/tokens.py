"""Tokens: secrets that are shown once and stored only as a hash, and a limit on how often wrong ones may be tried.

Guessing 256 bits is hopeless, and need not cost database searches.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict

MOST_FAILURES = 20
WINDOW_S = 60.0
_MOST_ADDRESSES = 10_000


def new_secret(kind: str) -> str:
    """A secret of 256 random bits with the prefix `kind`, by which scanners of source code find leaked ones."""
    return f"{kind}_{secrets.token_urlsafe(32)}"


def digest_of(secret: str) -> str:
    """SHA-256 of a secret. No slow hash: nobody guesses 256 random bits."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def new_id() -> str:
    """A random id of 64 bits, in hexadecimal."""
    return secrets.token_hex(8)


class Attempts:
    """Failures by address in the last minute. Thread-safe; time is an argument (monotonic)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def wait_s(self, address: str, now_s: float) -> float:
        """How long the address must wait before it may try again; 0 if it need not."""
        with self._lock:
            times = [one for one in self._failures.get(address, ()) if now_s - one < WINDOW_S]
        return WINDOW_S - (now_s - times[-MOST_FAILURES]) if len(times) >= MOST_FAILURES else 0.0

    def failed(self, address: str, now_s: float) -> None:
        """Count a failure."""
        with self._lock:
            times = self._failures.setdefault(address, [])
            times[:] = [one for one in times[1 - MOST_FAILURES :] if now_s - one < WINDOW_S] + [now_s]
            self._failures.move_to_end(address)
            if len(self._failures) > _MOST_ADDRESSES:
                self._failures.popitem(last=False)

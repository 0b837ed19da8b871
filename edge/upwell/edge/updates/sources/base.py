"""One interface for the places that bundles come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from upwell.shared.errors import UpwellError

Progress = Callable[[int, int], None]
"""Called with the bytes that are there and the bytes of the whole (0 if unknown)."""


class FetchFailed(UpwellError):
    """The source cannot be reached or does not have it; trying later may work. What was fetched so far is kept.

    `retry_after_s` is how long the source asks to be left alone, 0 where it does not say.
    """

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


@dataclass(frozen=True)
class AvailableBundle:
    """What a source has now.

    `token` names it: two offers with the same token are the same bundle (a digest, an ETag, or name, size and time).
    `sha256` is the digest of the archive where the source states it, else empty. `size_bytes` is 0 if unknown.
    """

    token: str
    sha256: str = ""
    size_bytes: int = 0


class Source(Protocol):
    """A place that bundles come from. Used by one thread at a time, but for `close`."""

    def newest(self) -> AvailableBundle | None:
        """What there is now; None where there is nothing. Asks for little more than its name.

        Raises `FetchFailed`, and `BundleRefused` for what can already be seen to be no bundle or not the one wanted.
        """
        ...

    def fetch(self, offer: AvailableBundle, into: Path, progress: Progress) -> Path:
        """The archive or folder of `offer` under the folder `into`, which is this source's own between calls.

        What an earlier call left there unfinished is taken up again. Raises `FetchFailed` where it could not be
        finished this time, and `BundleRefused` (`DIGEST_MISMATCH`, `TOO_LARGE`) where it is not what was offered.
        """
        ...

    def close(self) -> None:
        """Leave nothing open, from any thread: what is under way soon raises `FetchFailed`. Twice is harmless."""
        ...

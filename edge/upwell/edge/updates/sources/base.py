"""The interface of the places that bundles come from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from upwell.shared.errors import UpwellError
from upwell.shared.value_classes import value_class

Progress = Callable[[int, int], None]
"""Called with the bytes received so far and the total (0 if unknown)."""


class FetchFailed(UpwellError):
    """The source cannot be reached or does not have it; a retry later may succeed. Bytes fetched so far are kept.

    `retry_after_s` is the pause that the source asks for, 0 without one.
    """

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


@value_class
class AvailableBundle:
    """The bundle that a source has now.

    `token` identifies it: two offers with the same token are the same bundle (a digest, an ETag, or name, size and
    time). `sha256` is the digest of the archive if the source states it, otherwise empty. `size_bytes` is 0 if
    unknown.
    """

    token: str
    sha256: str = ""
    size_bytes: int = 0


class Source(Protocol):
    """A place that bundles come from. Used by one thread at a time, except for `close`."""

    def newest(self) -> AvailableBundle | None:
        """The current offer; None if there is none. Downloads little more than its name.

        Raises `FetchFailed`, and `BundleRefused` if it is visibly no bundle or not the one wanted.
        """
        ...

    def fetch(self, offer: AvailableBundle, into: Path, progress: Progress) -> Path:
        """The archive or folder of `offer` in the folder `into`, which belongs to this source between calls.

        An unfinished download of an earlier call is resumed. Raises `FetchFailed` if it could not be finished this
        time, and `BundleRefused` (`DIGEST_MISMATCH`, `TOO_LARGE`) if it is not what was offered.
        """
        ...

    def close(self) -> None:
        """Close everything, from any thread; a transfer in progress soon raises `FetchFailed`. Harmless twice."""
        ...

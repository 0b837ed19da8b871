"""An archive that arrives in pieces, over several connections and perhaps several runs of the process."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from upwell.edge.bundle.bundle import BundleRefused, Refusal
from upwell.edge.updates.sources.base import AvailableBundle, FetchFailed, Progress
from upwell.shared.files import write_whole
from upwell.shared.platform.closing import Closing

ARCHIVE_NAME = "download.bundle.tar"
RECORD_NAME = "download.json"
CHECKPOINT_BYTES = 1 << 20
"""Maximum number of bytes fetched again after a crash or a power failure; after a broken link, none."""

MAX_BYTES = 2 << 30
"""Maximum size of an archive to fetch."""

SPARE_BYTES = 16 << 20
"""Space left free on the disk: others write there, too."""

_BLOCK_BYTES = 1 << 20
_ANEW_S = 600.0


def check_room(folder: Path, needed_bytes: int, purpose: str) -> None:
    """Raise `FetchFailed` unless the disk of `folder` has that many bytes free, plus a reserve."""
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes + SPARE_BYTES > free_bytes:
        expected = f"expected {needed_bytes + SPARE_BYTES} {purpose}"
        raise FetchFailed(f"{folder}: {free_bytes} bytes are free on the disk; {expected}", _ANEW_S)


def fetch_archive(offer: AvailableBundle, into: Path, progress: Progress, bring: Callable[[Partial], None]) -> Path:
    """The archive of `offer` in the folder `into`; `bring` adds what is missing. Raises like `Source.fetch`."""
    with Partial(into, offer, progress) as partial:
        if not partial.is_complete:
            partial.expect(offer.size_bytes)
            if not offer.size_bytes or partial.size_bytes < offer.size_bytes:
                bring(partial)
        return partial.finish()


class _Record(BaseModel):
    """`download.json`: which offer the bytes belong to, and how many of them are known to be on disk."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    token: str
    bytes: int = Field(ge=0)
    is_complete: bool


class Partial(Closing):
    """The partial download of one offer, in a folder that holds nothing else. Close it, or use it as a context
    manager.

    Bytes count once they are synced to disk and the record that says so is replaced atomically, so data garbled by a
    power failure is never taken for a part of the archive.
    """

    def __init__(self, folder: Path, offer: AvailableBundle, progress: Progress) -> None:
        """Resume what is there of `offer`, and drop what is there of another. Raises `FetchFailed`."""
        self.path = folder / ARCHIVE_NAME
        self._record_path = folder / RECORD_NAME
        self._offer, self._progress = offer, progress
        self._expected_bytes = offer.size_bytes
        self._file: FileIO | None = None
        self.is_complete = False
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            known = self._known()
            self._open(known)
        except OSError as error:
            raise self._disk_failure(error) from None
        self.is_resumed = self.size_bytes > 0

    @property
    def size_bytes(self) -> int:
        """The number of bytes received."""
        return self._size_bytes

    def expect(self, size_bytes: int) -> None:
        """Set the total size (0 if unknown). Raises if it is too much for the limit or the disk."""
        self._expected_bytes = size_bytes or self._expected_bytes
        self._progress(self._size_bytes, self._expected_bytes)
        if self._expected_bytes > MAX_BYTES:
            self.drop()
            raise BundleRefused(
                Refusal.TOO_LARGE, None, f"has {self._expected_bytes} bytes; expected at most {MAX_BYTES}"
            )
        if self._expected_bytes:
            self._check_room()

    def append(self, data: bytes) -> None:
        """Append the next bytes. Raises `BundleRefused` beyond the limit and `FetchFailed` if the disk is full."""
        assert self._file is not None  # noqa: S101  appended to before it is closed
        # If a digest was also given, a server that sends more bytes sends something else.
        most_bytes = (self._offer.sha256 and self._offer.size_bytes) or MAX_BYTES
        if self._size_bytes + len(data) > most_bytes:
            self.drop()
            raise BundleRefused(Refusal.TOO_LARGE, None, f"has more bytes than the {most_bytes} allowed")
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
            self._digest.update(data)
            self._size_bytes += len(data)
            if self._size_bytes - self._synced_bytes >= CHECKPOINT_BYTES:
                self._checkpoint()
                self._check_room()
        except FetchFailed:
            self.drop()
            raise
        except OSError as error:
            # A disk that stays full would hurt more than this download.
            self.drop()
            raise self._disk_failure(error) from None
        self._progress(self._size_bytes, self._expected_bytes)

    def _check_room(self) -> None:
        """Raise `FetchFailed` if the disk lacks room for the remaining bytes, if their number is known."""
        whole_bytes = max(self._expected_bytes, self._size_bytes)
        # Unpacking takes as much again.
        check_room(self.path.parent, whole_bytes - self._size_bytes + whole_bytes, "to fetch and unpack it")

    def restart(self) -> None:
        """Start again: the bytes received do not belong to those that come."""
        try:
            self._close_file()
            self._open(0)
        except OSError as error:
            raise self._disk_failure(error) from None
        self.is_resumed = False

    def finish(self) -> Path:
        """The complete archive, after its last byte.

        If it is not what was offered, everything is deleted, and `BundleRefused` (`DIGEST_MISMATCH`) is raised, or
        `FetchFailed` if it was assembled from several fetches, since one of them may be to blame.
        """
        found = self._digest.hexdigest()
        if self._offer.sha256 and found != self._offer.sha256:
            self.drop()
            if self.is_resumed:
                raise FetchFailed("the fetched parts do not fit together; the download starts over", _ANEW_S)
            raise BundleRefused(
                Refusal.DIGEST_MISMATCH,
                None,
                f"what was fetched has the SHA-256 {found}; expected {self._offer.sha256}",
            )
        self.is_complete = True
        self.close()
        return self.path

    def drop(self) -> None:
        """Delete everything on disk. What a read-only disk keeps is no more than its record vouches for."""
        self._close_file()
        for path in (self._record_path, self.path):
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Make the received bytes durable. Calling it twice is harmless."""
        if self._file is not None:
            try:
                self._checkpoint()
            except OSError as error:
                self.drop()
                raise self._disk_failure(error) from None
            finally:
                self._close_file()

    def _known(self) -> int:
        """The number of bytes that certainly belong to this offer."""
        try:
            record = _Record.model_validate_json(self._record_path.read_bytes())
        except (FileNotFoundError, ValidationError):
            return 0
        if record.token != self._offer.token or not self.path.is_file() or self.path.stat().st_size < record.bytes:
            return 0
        self.is_complete = record.is_complete
        return record.bytes

    def _open(self, keep_bytes: int) -> None:
        if not keep_bytes:  # or the old record would apply to the new bytes
            self._record_path.unlink(missing_ok=True)
            self.is_complete = False
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
        self._file = FileIO(descriptor, "r+b")
        self._file.truncate(keep_bytes)
        self._digest = hashlib.sha256()
        while block := self._file.read(_BLOCK_BYTES):
            self._digest.update(block)
        self._size_bytes = self._synced_bytes = keep_bytes

    def _checkpoint(self) -> None:
        assert self._file is not None  # noqa: S101  called before it is closed
        os.fsync(self._file.fileno())
        record = _Record(token=self._offer.token, bytes=self._size_bytes, is_complete=self.is_complete)
        write_whole(self._record_path, record.model_dump_json().encode(), 0o600)
        self._synced_bytes = self._size_bytes

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _disk_failure(self, error: OSError) -> FetchFailed:
        full = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}
        why = full.get(error.errno or 0, error.strerror or str(error))
        return FetchFailed(f"{self.path.parent}: what is fetched cannot be written: {why}")

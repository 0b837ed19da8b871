"""The memory that a decoder's process and its reader share: counters, and a slot for one picture.

It is a file without a name (`memfd_create`; elsewhere a temporary file that is already deleted), open in both
processes and nowhere else, so the kernel frees it with the last of them, however they end.
`multiprocessing.shared_memory` uses names, and a tracker process that may unlink them while another process still
uses them.

Who may write is settled outside: when the reader asks for a picture, the slot belongs to the decoder until that says
what is in it, and then to the reader until it asks again. Only the decoder writes the counters; each is one aligned
word, which is never seen half written.

No numpy here: importing it is half the cost of starting a decoder, which recurs with each retry while a camera is
away.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import sys
import tempfile
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

if sys.platform == "linux":
    import fcntl

_HEADER_BYTES = mmap.ALLOCATIONGRANULARITY
"""The counters have a separate mapping, which stays when the picture's mapping is replaced."""
BYTES_PER_PIXEL = 4
"""Bytes per pixel: three of RGB and one of luma."""

Size: TypeAlias = tuple[int, int]
"""Width and height in pixels."""


class Wanted(NamedTuple):
    """The width and height to which larger pictures are shrunk; both 0 for no shrinking.

    With `keeps_shape` a picture keeps its proportions and fits into that size, otherwise each side is shrunk by
    itself.
    """

    width: int
    height: int
    keeps_shape: bool = False

    @property
    def turned(self) -> Wanted:
        """The same for pictures that are turned by 90 degrees."""
        return Wanted(self.height, self.width, self.keeps_shape)

    def size(self, width: int, height: int) -> Size:
        """The size that a picture of this size gets; none is enlarged. Rounds like `resize` of model.yaml."""
        if not self.width or not self.height:
            return width, height
        if not self.keeps_shape:
            return (self.width, self.height) if self.width <= width and self.height <= height else (width, height)
        scale = min(self.width / width, self.height / height)
        if scale >= 1:
            return width, height
        return min(self.width, max(1, round(width * scale))), min(self.height, max(1, round(height * scale)))


WHOLE = Wanted(0, 0)
"""Pictures keep their size."""

WANTED = struct.Struct("<HH?")
"""The reader's request for a picture size."""

_DECODED, _SUPERSEDED, _UNDECODABLE, _CHANGED_NS = range(4)


class SlotUnusable(ValueError):
    """A picture of that size cannot be in the slot."""


@dataclass(frozen=True)
class SlotCounts:
    """A decoder's counts so far: frames decoded, how many of them were replaced, and frames that could not be
    decoded.

    `changed_s` is when a frame last differed from the one before, by the monotonic clock, which all processes share;
    0 before the first frame.
    """

    decoded: int = 0
    superseded: int = 0
    undecodable: int = 0
    changed_s: float = 0.0


class FrameSlot:
    """One side's view of the shared memory. It owns the descriptor passed to it until `close`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _HEADER_BYTES)
        self._counters = memoryview(self._memory).cast("Q")[:4]
        self._pictures: mmap.mmap | None = None
        self._capacity_bytes = 0

    @classmethod
    def create(cls) -> FrameSlot:
        """A slot without room for a picture yet. It can grow but never shrink (on Linux).

        Without that seal, a decoder taken over by a hostile stream could shrink the file under its reader, which
        would then die of SIGBUS.
        """
        if sys.platform == "linux":
            descriptor = os.memfd_create("upwell-frames", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.truncate(descriptor, _HEADER_BYTES)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
            os.truncate(descriptor, _HEADER_BYTES)
        return cls(descriptor)

    def grow(self, width: int, height: int) -> None:
        """Make room for a picture of that size."""
        size_bytes = _HEADER_BYTES + BYTES_PER_PIXEL * height * width
        if os.fstat(self.descriptor).st_size < size_bytes:
            os.truncate(self.descriptor, size_bytes)

    def picture(self, width: int, height: int) -> memoryview:
        """The picture in the slot, to write or read: RGB, 3 bytes a pixel row by row, then luma, a byte a pixel.

        The luma has `size`, the RGB that or a smaller one. Valid until the next call. Raises `SlotUnusable` if the
        slot has no room for that size.
        """
        size_bytes = BYTES_PER_PIXEL * width * height
        if size_bytes > self._capacity_bytes:
            capacity_bytes = os.fstat(self.descriptor).st_size - _HEADER_BYTES
            if size_bytes > capacity_bytes:
                raise SlotUnusable(f"a picture of {width} x {height} pixels does not fit the slot")
            self._unmap()
            self._pictures = mmap.mmap(self.descriptor, capacity_bytes, offset=_HEADER_BYTES)
            self._capacity_bytes = capacity_bytes
        assert self._pictures is not None  # noqa: S101 (no picture has no pixels)
        return memoryview(self._pictures)[:size_bytes]

    @property
    def counts(self) -> SlotCounts:
        """The current counts."""
        decoded, superseded, undecodable, changed_ns = self._counters
        return SlotCounts(decoded, superseded, undecodable, changed_ns / 1e9)

    def count_decoded(self, *, supersedes: bool = False) -> int:
        """Count a decoded frame, which may replace a waiting one; return its number, from 1 on."""
        # The replaced one first: this process may be killed in between, and no frame may have two fates.
        self._counters[_SUPERSEDED] += int(supersedes)
        self._counters[_DECODED] += 1
        return self._counters[_DECODED] + self._counters[_UNDECODABLE]

    def count_undecodable(self) -> None:
        """Count a frame that cannot be decoded."""
        self._counters[_UNDECODABLE] += 1

    def set_changed(self, now_s: float) -> None:
        """Record that a frame differs from the one before."""
        self._counters[_CHANGED_NS] = int(now_s * 1e9)

    def close(self) -> None:
        """Unmap and close. Harmless twice."""
        if self.descriptor < 0:
            return
        self._unmap()
        counted = memoryview(bytes(self._counters)).cast("Q")  # the counts remain readable
        self._counters.release()
        self._counters = counted
        self._memory.close()
        os.close(self.descriptor)
        self.descriptor = -1

    def _unmap(self) -> None:
        if self._pictures is not None:
            with contextlib.suppress(BufferError):  # an error still holds a view: unmapped when that is dropped
                self._pictures.close()
            self._pictures, self._capacity_bytes = None, 0

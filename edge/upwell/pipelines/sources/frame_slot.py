"""The memory that a decoder's process and its reader share: counters, and a slot for one picture.

It is a file without a name (`memfd_create`; elsewhere a temporary file that is already deleted), open in both processes
and nowhere else, so that the kernel frees it with the last of them, however they end. `multiprocessing.shared_memory`
has names, and a tracker process that would unlink them behind the back of whoever lives on.

Who writes is settled outside: the reader asks for a picture, from then on the slot is the decoder's until that says
what is in it, and then the reader's until it asks again. The counters are the decoder's alone; each is one aligned
word, which is never seen half written.

No numpy here: importing it is half of what starting a decoder costs, again for each try while a camera is away.
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
"""The counters have a separate mapping, which stays when pictures get another one."""
BYTES_PER_PIXEL = 4
"""Bytes per pixel: three of RGB and one of luma."""

Size: TypeAlias = tuple[int, int]
"""Width and height in pixels."""


class Wanted(NamedTuple):
    """The width and height to which larger pictures are to be shrunk, both 0 for not at all.

    With `keeps_shape` a picture gets as large as fits into that, else each side is shrunk on its own.
    """

    width: int
    height: int
    keeps_shape: bool = False

    @property
    def turned(self) -> Wanted:
        """The same for pictures that lie on their side."""
        return Wanted(self.height, self.width, self.keeps_shape)

    def size(self, width: int, height: int) -> Size:
        """What a picture of that size gets; none is made larger. As `resize` of model.yaml rounds."""
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
    """What was said to lie in the slot cannot lie there."""


@dataclass(frozen=True)
class SlotCounts:
    """What a decoder has done so far: frames decoded, of these the replaced ones, and others that cannot be decoded.

    `changed_s` is when a frame last differed from the one before, by the monotonic clock, which all processes share; 0
    before there is one.
    """

    decoded: int = 0
    superseded: int = 0
    undecodable: int = 0
    changed_s: float = 0.0


class FrameSlot:
    """One side's view of the shared memory. It owns the descriptor that it is made with, until `close`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _HEADER_BYTES)
        self._counters = memoryview(self._memory).cast("Q")[:4]
        self._pictures: mmap.mmap | None = None
        self._capacity_bytes = 0

    @classmethod
    def create(cls) -> FrameSlot:
        """A slot without room for any picture yet. What has been added can never be taken away (on Linux).

        Without that seal a decoder that a hostile stream has taken over could shrink the file under its reader, which
        would end with SIGBUS.
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
        """The picture in the slot, to be written or read: RGB, 3 bytes a pixel row by row, then luma, a byte a pixel.

        The luma has that size, the RGB that or a smaller one. Valid until the next call. Raises `SlotUnusable` where
        the slot has no room for that size.
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
        """The counters as they are."""
        decoded, superseded, undecodable, changed_ns = self._counters
        return SlotCounts(decoded, superseded, undecodable, changed_ns / 1e9)

    def count_decoded(self, *, supersedes: bool = False) -> int:
        """A frame was decoded, and replaces one that waited or does not; its number among all, from 1 on."""
        # The replaced one first: this process may be killed between the two, and no frame may then have two fates.
        self._counters[_SUPERSEDED] += int(supersedes)
        self._counters[_DECODED] += 1
        return self._counters[_DECODED] + self._counters[_UNDECODABLE]

    def count_undecodable(self) -> None:
        """A frame came that cannot be decoded."""
        self._counters[_UNDECODABLE] += 1

    def set_changed(self, now_s: float) -> None:
        """A frame came that differs from the one before."""
        self._counters[_CHANGED_NS] = int(now_s * 1e9)

    def close(self) -> None:
        """Unmap and close. Twice is harmless."""
        if self.descriptor < 0:
            return
        self._unmap()
        counted = memoryview(bytes(self._counters)).cast("Q")  # what was counted can still be read
        self._counters.release()
        self._counters = counted
        self._memory.close()
        os.close(self.descriptor)
        self.descriptor = -1

    def _unmap(self) -> None:
        if self._pictures is not None:
            with contextlib.suppress(BufferError):  # a view that an error still holds: unmapped when that is dropped
                self._pictures.close()
            self._pictures, self._capacity_bytes = None, 0

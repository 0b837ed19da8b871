"""A decoder's process as seen by its parent: starts it, requests pictures, receives its messages, and ends it."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from upwell.pipelines.sources.frame_slot import WANTED, FrameSlot, Size, SlotCounts, SlotUnusable, Wanted
from upwell.shared.tensors import Array

_PROGRAM = "import sys; sys.path[:] = {!r}; from upwell.pipelines.sources.decoder_child import main; main()"
"""What the child runs. A plain `-m` would look for modules in the current folder first."""

_MAX_LINE_BYTES = 1 << 16
_KILL_S, _HANGING_UP_S = 10.0, 1.0


@dataclass(frozen=True)
class DecoderJob:
    """What a decoder is to open, and how: see `DecoderRequest` of the child."""

    address: str
    is_live: bool
    keeps_all: bool
    max_pixels: int
    fps: float = 0.0
    decoder: str = ""
    format: str = ""
    options: Mapping[str, str] | None = None
    command: Sequence[str] = ()


class DecoderProcess:
    """One child process. One thread starts, receives and ends it; call `ask`, `read` and `free` under the source's
    lock.

    The address goes through a pipe, since every user of the machine can read a command line. Standard error is
    dropped, since FFmpeg writes the address to it.
    """

    def __init__(self, job: DecoderJob) -> None:
        self._job = job
        self._slot = FrameSlot.create()
        self._buffer = b""
        self._has_hung_up = False
        self._lock = threading.Lock()
        try:
            self._process = subprocess.Popen(  # noqa: S603 (this interpreter, and a module of this package)
                [sys.executable, "-c", _PROGRAM.format(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(self._slot.descriptor,),
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for this process, and not for GStreamer either
            )
        except BaseException:  # release the memory, whatever the error
            self._slot.close()
            raise
        request = {**asdict(job), "options": dict(job.options or {}), "slot": self._slot.descriptor}
        self._send(json.dumps({**request, "parent": os.getpid()}).encode() + b"\n")

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def counts(self) -> SlotCounts:
        """The child's counts so far, also after its end."""
        return self._slot.counts

    def ask(self, wanted: Wanted) -> None:
        """Request the next picture, shrunk like this. The slot belongs to the child until it sends `frame`."""
        self._send(WANTED.pack(*wanted))

    def read(self, size: Size, rgb_size: Size, turns: int = 0) -> tuple[Array, Array]:
        """A copy of the picture in the slot: RGB uint8 [height, width, 3] of `rgb_size`, luma of `size`, both turned.

        Raises `SlotUnusable` for an impossible size.
        """
        (width, height), (rgb_width, rgb_height) = size, rgb_size
        if width < 1 or height < 1 or width * height > self._job.max_pixels:
            raise SlotUnusable(
                f"a picture of {width} x {height} pixels; at most {self._job.max_pixels} pixels are allowed"
            )
        if not (0 < rgb_width <= width and 0 < rgb_height <= height):
            raise SlotUnusable(f"{rgb_width} x {rgb_height} pixels of a picture of {width} x {height}")
        data = np.frombuffer(self._slot.picture(width, height), np.uint8)
        end = 3 * rgb_width * rgb_height
        luma = data[end : end + width * height].reshape(height, width)
        pixels = data[:end].reshape(rgb_height, rgb_width, 3)
        return np.rot90(pixels, turns).copy(), np.rot90(luma, turns).copy()

    def receive(self, timeout_s: float) -> list[dict[str, Any]] | None:
        """The child's messages, perhaps none within the timeout; None once it is over and everything was received."""
        out = self._process.stdout
        assert out is not None  # noqa: S101 (it was asked for)
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                return []
        data = os.read(out.fileno(), _MAX_LINE_BYTES)
        if not data:
            self._has_hung_up = True
            return None
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if len(self._buffer) > _MAX_LINE_BYTES:
            return None
        return [message for line in lines if isinstance(message := _parsed(line), dict)]

    def kill(self) -> None:
        """End the process, from any thread; `receive` will report it."""
        self._process.kill()

    def end(self) -> int:
        """End the process and wait for it. Returns the signal that had ended it before, 0 for none. The slot stays."""
        if self._has_hung_up:
            with suppress(subprocess.TimeoutExpired):  # it may be ending: let it exit by itself
                self._process.wait(_HANGING_UP_S)
        by_itself = self._process.poll()
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # a process in an uninterruptible wait, such as for a dead camera
            self._process.wait(_KILL_S)
        with self._lock:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
        return -by_itself if by_itself is not None and by_itself < 0 else 0

    def free(self) -> None:
        """Release the shared memory. The counts stay."""
        self._slot.close()

    def _send(self, data: bytes) -> None:
        pipe = self._process.stdin
        assert pipe is not None  # noqa: S101 (it was asked for)
        with self._lock, suppress(OSError, ValueError):  # it is over, which `receive` will report
            pipe.write(data)


def _parsed(line: bytes) -> object:
    try:
        parsed: object = json.loads(line)
    except ValueError:
        return None
    return parsed

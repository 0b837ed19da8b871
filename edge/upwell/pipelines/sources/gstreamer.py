"""A GStreamer command line in place of the decoder: runs without a shell and delivers raw frames through a pipe."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import IO

from upwell.shared.platform.process import ended_with_parent

PROGRAM = "gst-launch-1.0"
RAW_FORMAT = "yuv4mpegpipe"
"""FFmpeg's name for the format read from it."""
ADDRESS = "{address}"
"""Placeholder in the command line for the video's address or the camera."""

_END_S, _CAPS_S = 1.0, 1.0
_TO_YUV4MPEG = (
    "! videoconvert ! videoscale ! video/x-raw,format=I420,width=[8,65528,8],height=[2,65534,2] "
    "! identity drop-allocation=true ! y4menc"
)
"""`y4menc` writes the padding of rows as if it were pixels. There is no padding without a buffer of the decoder's own
layout, which the last element but one refuses, and with sizes like these; others are scaled to the nearest one.
"""
_MAX_LINES = 200
_CAPS = re.compile(r"^(?P<path>/GstPipeline:\S+)\.Gst\w*Pad:(?P<pad>\w+): caps = (?P<kind>[\w/-]+)")


def command_of(text: str) -> tuple[str, ...]:
    """The arguments of a command line, quoted as in a shell but run without one. Raises `ValueError`."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"the command line cannot be read: {error}") from None
    if len(words) < 2 or os.path.basename(words[0]) != PROGRAM:
        raise ValueError(f"expected a decoder's name, such as v4l2m2m, or a command line that begins with {PROGRAM}")
    if words[-1] == "!" or any(re.match(r"(fd|file|fake|multifile|tcp|udp)\w*sink$", word) for word in words):
        raise ValueError("the command line must end with raw video; expected it without a sink")
    return tuple(words)


class GStreamer:
    """One run of `gst-launch-1.0`. Its raw video is read from `descriptor` as YUV4MPEG2, which states its size.

    Elements appended to the command line convert its output to that format. It ends with the process that runs it.
    Raises `OSError` if it cannot be started.
    """

    def __init__(self, command: Sequence[str], address: str) -> None:
        self.descriptor, out = os.pipe()
        words = [word.replace(ADDRESS, address) for word in command]
        tail = f"{_TO_YUV4MPEG} ! fdsink sync=false fd={out}"
        try:
            self._process = subprocess.Popen(  # noqa: S603 (no shell, and the owner of this file says which program)
                [words[0], "-v", *words[1:], *tail.split()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(out,),
                preexec_fn=ended_with_parent(),
                text=True,
                errors="replace",
            )
        except BaseException:  # no descriptor stays open, whatever the error
            os.close(self.descriptor)
            raise
        finally:
            os.close(out)
        self._caps: dict[str, dict[str, str]] = {}
        self._is_flowing = threading.Event()
        self._errors: list[str] = []
        self._threads = [
            threading.Thread(target=_read, args=(self._process.stdout, self._hear), daemon=True),
            threading.Thread(target=_read, args=(self._process.stderr, self._note), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def decoder(self) -> str:
        """The element that decodes, such as `avdec_h264`: its input is encoded and its output is raw.

        The program's name if nothing is decoded, as with a camera that delivers raw frames.
        """
        self._is_flowing.wait(_CAPS_S)
        for path, pads in list(self._caps.items()):
            if pads.get("sink", "video/x-raw") != "video/x-raw" and pads.get("src") == "video/x-raw":
                kind, _, name = path.rpartition("/")[2].partition(":")
                return re.sub(r"-?\d+$", "", name) or kind
        return PROGRAM

    def why_over(self) -> str:
        """Why it ended, empty if it ended well; waits a moment for the end."""
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return ""
        for thread in self._threads:
            thread.join(_END_S)
        if code < 0:
            return f"{PROGRAM} was killed by signal {-code}"
        said = next((line for line in self._errors if "ERROR" in line or "erroneous" in line), "")
        return f"{PROGRAM}: {said.removeprefix('ERROR: ')}" if code or said else ""

    def __enter__(self) -> GStreamer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self.descriptor)

    def _hear(self, line: str) -> None:
        if (found := _CAPS.match(line)) is not None:
            self._caps.setdefault(found["path"], {})[found["pad"]] = found["kind"]
            if found["kind"] == "application/x-yuv4mpeg":
                self._is_flowing.set()

    def _note(self, line: str) -> None:
        if len(self._errors) < _MAX_LINES:
            self._errors.append(line)


def _read(pipe: IO[str] | None, take: Callable[[str], None]) -> None:
    assert pipe is not None  # noqa: S101 (it was asked for)
    with suppress(ValueError, OSError), pipe:
        for line in pipe:
            take(line.strip())

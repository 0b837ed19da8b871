"""The process that opens one source and decodes it, so that a stuck or crashing decoder harms nothing else.

It reads one JSON object in a line of standard input (`DecoderRequest`), then for each picture wanted its width and
height (`WANTED`), and exits when that stream ends. On standard output it writes one JSON object per line:
`{"opening": true}` before it connects, `{"decoder": name, "instead": why}` once it has, `{"frame": number,
"captured_s", "media_s", "unix_s", "width", "height", "pixels": [width, height], "turns"}` when a picture is in the
slot (`turns` is the number of counterclockwise turns by 90 degrees that it needs), and `{"ended": why}`. `why` is
empty if all went well, and never contains the address.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import av
from av.container import InputContainer
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream

from upwell.pipelines.sources.capture_time import CaptureClock, FrameRate, MediaClock
from upwell.pipelines.sources.frame_slot import WANTED, WHOLE, FrameSlot, Size, Wanted
from upwell.pipelines.sources.gstreamer import RAW_FORMAT, GStreamer
from upwell.shared.platform.memory import map_large_blocks
from upwell.shared.platform.process import end_with_parent

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_WITH_LUMA = frozenset({"gray", "nv12", "nv21", *(f"yuv{j}{kind}p" for j in ("", "j") for kind in (420, 422, 444))})
"""Formats whose first plane is luma with one byte per pixel."""

_WITHOUT_TIME = frozenset(
    {"mpjpeg", "mjpeg", "mjpeg_2000", "h264", "hevc", "image2", "image2pipe", "jpeg_pipe", RAW_FORMAT}
)
"""Containers without times, for which FFmpeg assumes 25 frames per second."""

_ALIGNED_PIXELS = 128 * (1 << 17)
"""How far the decoder's own limit, which concerns allocated memory, exceeds the limit on pictures.

The decoder rounds both sides up to at most the next 128 pixels, and neither exceeds 65,535. A picture between the two
limits is refused once it is decoded.
"""

_UNDECODABLE = (av.error.InvalidDataError, av.error.ArgumentError, av.error.PatchWelcomeError)
"""Errors of a decoder for damaged, impossible or unsupported data."""

_SCALED = 0x2 | 0x2000 | 0x40000
"""How pictures are shrunk, in one pass with the colours: swscale's bilinear filter, full chroma, accurate rounding.

Like Pillow's, it is a triangle as wide as the step between output pixels. Photographs differ from those that Pillow
shrinks by at most 24 of 255 in any pixel, by 1.2 on average.
"""

_EACH_ROW = 8
"""Row step for detecting whether a picture has changed."""

Say: TypeAlias = Callable[[dict[str, Any]], None]
_Given: TypeAlias = tuple[int, float, float | None, VideoFrame]
"""Number, capture time and file time of a frame."""


@dataclass(frozen=True)
class DecoderRequest:
    """What to open and how. `slot` is an inherited descriptor; `parent` is the process whose end also ends this one."""

    address: str
    format: str
    options: dict[str, str]
    is_live: bool
    keeps_all: bool
    fps: float
    decoder: str
    command: list[str]
    max_pixels: int
    slot: int
    parent: int


class Handover:
    """Hands over decoded frames, one at a time and only on request. Nothing is converted that nobody takes.

    States: a frame waits or none does; a picture is wanted or none is. Never both: whoever sees both hands over. The
    decoding thread offers, the thread that reads requests takes. Conversion happens outside the lock, so a decoder
    that replaces frames never waits for it.
    """

    def __init__(self, slot: FrameSlot, say: Say, *, keeps_all: bool) -> None:
        self._slot = slot
        self._say = say
        self._keeps_all = keeps_all
        self._change = threading.Condition()
        self._waiting: _Given | None = None
        self._is_wanted = False
        self._is_giving = False
        self._wanted = WHOLE
        self._reformatter = VideoReformatter()

    def want(self, wanted: Wanted) -> None:
        """A picture is wanted, shrunk like this: hand over the waiting one, or the next one."""
        with self._change:
            self._wanted = wanted
            waiting, self._waiting = self._waiting, None
            self._is_wanted = waiting is None
            self._is_giving = waiting is not None
            self._change.notify_all()
        if waiting is not None:
            self._give(waiting)
            with self._change:
                self._is_giving = False
                self._change.notify_all()

    def offer(self, frame: VideoFrame, captured_s: float, media_s: float | None = None) -> None:
        """A frame was decoded, at `media_s` of a file. If all are kept, wait until the one before it is taken."""
        with self._change:
            if self._keeps_all:
                self._change.wait_for(lambda: self._waiting is None)
            number = self._slot.count_decoded(supersedes=self._waiting is not None)
            given = (number, captured_s, media_s, frame)
            is_wanted, self._is_wanted = self._is_wanted, False
            self._waiting = None if is_wanted else given
        if is_wanted:
            self._give(given)

    def wait_until_taken(self) -> None:
        """Return when no frame waits or is being handed over."""
        with self._change:
            self._change.wait_for(lambda: self._waiting is None and not self._is_giving)

    def _give(self, given: _Given) -> None:
        number, captured_s, media_s, frame = given
        turns = round(frame.rotation / 90) % 4  # phones record how they were held
        wanted = self._wanted.turned if turns % 2 else self._wanted
        pixels = write_picture(frame, self._slot, wanted, self._reformatter)
        self._say(
            {
                "frame": number,
                "captured_s": captured_s,
                "media_s": media_s,
                "unix_s": time.time() - (time.monotonic() - captured_s),
                "width": frame.width,
                "height": frame.height,
                "pixels": pixels,
                "turns": turns,
            }
        )


def write_picture(frame: VideoFrame, slot: FrameSlot, wanted: Wanted, reformatter: VideoReformatter) -> Size:
    """Write a decoded frame to the slot, RGB in the wanted size and luma in its own; return the RGB size.

    The luma is the decoder's own 8-bit plane if it has one, and so mostly in 16 to 235 (ITU-R BT.601, 2.5).
    """
    slot.grow(frame.width, frame.height)
    picture, size = slot.picture(frame.width, frame.height), wanted.size(frame.width, frame.height)
    how = None if size == (frame.width, frame.height) else _SCALED
    rgb_bytes = 3 * size[0] * size[1]
    _copy(reformatter.reformat(frame, *size, "rgb24", interpolation=how), picture[:rgb_bytes], 3 * size[0])
    gray = frame if frame.format.name in _WITH_LUMA else frame.reformat(format="gray")
    _copy(gray, picture[rgb_bytes : rgb_bytes + frame.width * frame.height], frame.width)
    return size


def coarse_digest(frame: VideoFrame) -> int:
    """A checksum of some rows of the first plane, which in most formats is the luma."""
    plane, digest = frame.planes[0], 0
    rows, line_bytes = memoryview(plane), plane.line_size
    for start in range(0, frame.height * line_bytes, _EACH_ROW * line_bytes):
        digest = zlib.crc32(rows[start : start + frame.width], digest)  # the rest is padding
    return digest


def _copy(frame: VideoFrame, to: memoryview, row_bytes: int) -> None:
    """Copy the first plane row by row, without the padding at the end of each."""
    plane = frame.planes[0]
    rows, line_bytes = memoryview(plane), plane.line_size
    if line_bytes == row_bytes:
        to[:] = rows[: len(to)]
        return
    for row in range(frame.height):
        start = row * line_bytes
        to[row * row_bytes : (row + 1) * row_bytes] = rows[start : start + row_bytes]


def decode_all(request: DecoderRequest, slot: FrameSlot, handover: Handover, say: Say) -> str:
    """Decode until the stream ends; return why it did, empty at the end of a file."""
    say({"opening": True})
    try:
        if not request.command:
            with av.open(request.address, format=request.format or None, options=request.options) as container:
                return _decode(request, slot, handover, say, container)
        with GStreamer(request.command, request.address) as program:
            why = _decode_program(program, request, slot, handover, say)
            return program.why_over() or why
    except (av.FFmpegError, OSError) as error:
        if request.command and isinstance(error, FileNotFoundError):
            return f"there is no program {request.command[0]}"
        return _why_unopened(error, request.address)


def _why_unopened(error: BaseException, address: str) -> str:
    """Like `reason`, but clearer than FFmpeg about two common mistakes."""
    if isinstance(error, av.error.ProtocolNotFoundError):
        return f"the installed PyAV cannot open {address.partition(':')[0]} addresses"
    if getattr(error, "errno", 0) == errno.EIO and _is_unknown(address):
        return "its host name cannot be resolved"
    return reason(error)


def _is_unknown(address: str) -> bool:
    """Whether the name of a stream's host cannot be resolved, for which FFmpeg says "Input/output error"."""
    try:
        host = urlsplit(address).hostname
        return host is not None and not socket.getaddrinfo(host, None)
    except ValueError:
        return False
    except OSError:
        return True


def _decode_program(program: GStreamer, request: DecoderRequest, slot: FrameSlot, handover: Handover, say: Say) -> str:
    """Decode what a GStreamer command line writes, like `_decode`."""

    def tell(message: dict[str, Any]) -> None:
        say({**message, "decoder": program.decoder()} if "decoder" in message else message)

    try:
        raw = av.open(f"pipe:{program.descriptor}", format=RAW_FORMAT, options={"protocol_whitelist": "pipe"})
    except av.FFmpegError:
        return "the program produced no video"
    with raw:
        try:
            return _decode(request, slot, handover, tell, raw)
        except av.FFmpegError as error:
            return reason(error)


def reason(error: BaseException) -> str:
    """What went wrong. Never the whole text of the error: it contains the address, and so perhaps a password."""
    return getattr(error, "strerror", None) or type(error).__name__


def _decode(request: DecoderRequest, slot: FrameSlot, handover: Handover, say: Say, container: InputContainer) -> str:
    if not container.streams.video:
        return "it contains no video"
    stream = container.streams.video[0]
    size = stream.codec_context.width, stream.codec_context.height
    if size[0] * size[1] > request.max_pixels:
        return _too_large(size, request.max_pixels)
    context, instead = opened_decoder(stream, request)
    say({"decoder": context.codec.name, "instead": instead})
    clock, media, rate, seen = CaptureClock(), MediaClock(), FrameRate(request.fps), -1
    has_time = container.format.name not in _WITHOUT_TIME
    for frame in _frames(container, stream, context, slot):
        now_s = time.monotonic()
        if frame.width * frame.height > request.max_pixels:
            return _too_large((frame.width, frame.height), request.max_pixels)
        coarse = coarse_digest(frame)
        if coarse != seen or not request.is_live:  # a file may show one picture for any length of time
            slot.set_changed(now_s)
            seen = coarse
        stream_s = frame.time if has_time else None
        captured_s = clock.captured_s(now_s, stream_s) if request.is_live else now_s
        media_s = None if request.is_live else media.at_s(stream_s)
        if rate.keeps(captured_s if media_s is None else media_s):
            handover.offer(frame, captured_s, media_s)
    return "the stream has ended" if request.is_live else ""


def opened_decoder(stream: VideoStream, request: DecoderRequest) -> tuple[VideoCodecContext, str]:
    """The requested decoder or else the stream's own, and the reason if it is not the requested one."""
    own = stream.codec_context
    limits = {"max_pixels": str(request.max_pixels + _ALIGNED_PIXELS)}
    if own.codec.name == "mjpeg":
        limits["err_detect"] = "explode"  # else a picture that breaks off is grey from there on, and not marked corrupt
    instead = ""
    if request.decoder:
        try:
            context = av.CodecContext.create(_full_name(request.decoder, own.codec.name), "r")
            if isinstance(context, VideoCodecContext) and context.codec.id == own.codec.id:
                context.extradata, context.options = own.extradata, limits
                context.width, context.height = own.width, own.height
                context.open()
                return context, ""
            instead = f"{request.decoder} does not decode {own.codec.name}"
        except av.codec.codec.UnknownCodecError:
            instead = f"the installed PyAV has no decoder {request.decoder} for {own.codec.name}"
        except (av.FFmpegError, ValueError, OSError) as error:
            instead = f"{request.decoder} cannot be used: {reason(error)}"
    own.options = limits
    if not request.is_live:
        own.thread_type = "AUTO"  # frame threads add latency: only for files
    own.open(strict=False)
    return own, instead


def _full_name(decoder: str, codec: str) -> str:
    """The codec's own version of a suffix, `h264_v4l2m2m` for `v4l2m2m`; other names are returned unchanged."""
    return name if (name := f"{codec}_{decoder}") in av.codecs_available else decoder


def _frames(
    container: InputContainer, stream: VideoStream, context: VideoCodecContext, slot: FrameSlot
) -> Iterator[VideoFrame]:
    is_cut_off = False
    for packet in container.demux(stream):
        if packet.size:  # the last one has no data
            is_cut_off = packet.is_corrupt
        try:
            frames = context.decode(packet)
        except _UNDECODABLE:
            slot.count_undecodable()
            continue
        for frame in frames:
            if frame.is_corrupt:
                slot.count_undecodable()
            else:
                yield frame
    if is_cut_off:
        raise OSError(errno.ENODATA, "the video is cut off")


def _too_large(size: tuple[int, int], max_pixels: int) -> str:
    return f"the pictures have {size[0]} x {size[1]} pixels; at most {max_pixels} are decoded"


def _listen(handover: Handover) -> None:
    """Pass requests on until the parent closes the pipe."""
    try:
        while (size := os.read(0, WANTED.size)) and len(size) == WANTED.size:  # a pipe never splits a write this short
            handover.want(Wanted(*WANTED.unpack(size)))
    finally:
        os._exit(0)  # the decoder may be in the middle of anything


def main() -> None:
    """Decode as told on standard input."""
    map_large_blocks()  # for FFmpeg's pictures, which small, longer-lived blocks separate
    line = b""
    while not line.endswith(b"\n"):
        if not (more := os.read(0, 1)):  # byte by byte: a thread reads what follows, unbuffered
            return
        line += more
    request = DecoderRequest(**json.loads(line))
    end_with_parent(request.parent)
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # libraries print to standard output

    def say(message: dict[str, Any]) -> None:
        out.write(json.dumps(message).encode() + b"\n")

    slot = FrameSlot(request.slot)
    handover = Handover(slot, say, keeps_all=request.keeps_all)
    threading.Thread(target=_listen, args=(handover,), daemon=True).start()
    try:
        why = decode_all(request, slot, handover, say)
    except Exception as error:  # noqa: BLE001 (the border of a process: whatever it was, it is said)
        why = f"the decoder failed with {type(error).__name__}"
    if not request.is_live:
        handover.wait_until_taken()
    say({"ended": why})
    os._exit(0)  # a decoder may hang when it is closed

"""Made videos whose frames say their own number, and a server of live streams that goes wrong as it is told."""

from __future__ import annotations

import contextlib
import io
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

import av
import numpy as np
from av.video.stream import VideoStream
from PIL import Image

from upwell.shared.tensors import Array

_BITS = 12
_TICKS = 90_000


def numbered(number: int, width: int = 160, height: int = 120) -> Array:
    """A picture, uint8 [height, width, 3], that has its number written into it as white and black stripes."""
    bits = (number >> np.arange(_BITS)) & 1
    columns = bits[np.arange(width) * _BITS // width].astype(np.uint8) * 200 + 20
    return np.repeat(np.repeat(columns[None, :, None], height, axis=0), 3, axis=2)


def number_of(pixels: Array) -> int:
    """The number that was written into a picture, whatever a codec and a change of size have made of it."""
    row = pixels[pixels.shape[0] // 2, :, 1]
    centres = (np.arange(_BITS) * 2 + 1) * row.size // (2 * _BITS)
    return int(((row[centres] > 120).astype(int) << np.arange(_BITS)).sum())


@dataclass(frozen=True)
class MadeVideo:
    """How a video is made: frames `first` to `first + count - 1`, each `1 / fps` after the other from `start_s` on."""

    count: int = 20
    first: int = 0
    width: int = 160
    height: int = 120
    fps: int = 50
    start_s: float = 0.0
    key_every: int = 5
    codec: str = "libx264"

    def write(self, path: Path) -> Path:
        """As a file, of the container that its suffix names."""
        with av.open(str(path), "w") as container:
            stream = self._stream(container)
            for packets in self._packets(stream):
                container.mux(packets)
        return path

    def chunks(self) -> list[bytes]:
        """As MPEG-TS, the bytes of each frame by themselves, with nothing held back until the next one."""
        out = _Written()
        with av.open(out, "w", format="mpegts", options={"flush_packets": "1"}) as container:
            container.flags |= av.container.Flags.flush_packets.value
            stream = self._stream(container)
            for packets in self._packets(stream):
                container.mux(packets)
                out.cut()
        *chunks, rest = (*out.chunks, bytes(out.rest))
        chunks[-1] += rest
        return [chunk for chunk in chunks if chunk]

    def frames(self) -> list[bytes]:
        """As bare H.264, the bytes of each frame by themselves (ITU-T H.264, annex B)."""
        with av.open(io.BytesIO(), "w", format="h264") as container:
            stream = self._stream(container)
            return [bytes(packet) for packets in self._packets(stream) for packet in packets]

    def _stream(self, container: Any) -> VideoStream:
        options = {"preset": "ultrafast", "tune": "zerolatency", "g": str(self.key_every), "x264-params": "scenecut=0"}
        stream = container.add_stream(self.codec, rate=self.fps, options=options if "264" in self.codec else {})
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = self.width, self.height, "yuv420p"
        stream.codec_context.time_base = Fraction(1, _TICKS)
        return stream

    def _packets(self, stream: VideoStream) -> Any:
        for index in range(self.count):
            pixels = numbered(self.first + index, self.width, self.height)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = round((self.start_s + index / self.fps) * _TICKS)
            frame.time_base = Fraction(1, _TICKS)
            yield stream.encode(frame)
        yield stream.encode(None)


class _Written(io.RawIOBase):
    """A file that is written in order, in pieces."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.rest = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.rest += data
        return len(data)

    def cut(self) -> None:
        """What was written since the last cut is one piece."""
        self.chunks.append(bytes(self.rest))
        self.rest.clear()


def jpeg_part(number: int) -> bytes:
    """A frame of a stream of JPEG pictures over HTTP."""
    out = io.BytesIO()
    Image.fromarray(numbered(number)).save(out, "JPEG")
    body = out.getvalue()
    return b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n%b\r\n" % (len(body), body)


class Viewer:
    """One connection of a `LiveServer`, as its script has it."""

    def __init__(self, connection: socket.socket, head: bytes, stopping: threading.Event) -> None:
        self.head = head
        self._connection = connection
        self._stopping = stopping

    def reply(self, status: str = "200 OK", kind: str = "video/mp2t") -> None:
        """Send the head of an answer without a length, whose body lasts as long as the connection."""
        self.send(f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n".encode())

    def send(self, data: bytes) -> None:
        """Send bytes. Raises `OSError` once the viewer has left."""
        self._connection.sendall(data)

    def play(self, chunks: Sequence[bytes], fps: float) -> None:
        """Send one chunk after the other, so many a second."""
        for chunk in chunks:
            self.send(chunk)
            self.wait(1 / fps)

    def wait(self, time_s: float | None = None) -> None:
        """Say nothing for so long, or until the viewer leaves or the server stops. Raises `OSError` then."""
        if time_s is not None:
            if self._stopping.wait(time_s):
                raise ConnectionAbortedError
            return
        while self._connection.recv(1 << 16):
            pass
        raise ConnectionAbortedError

    def next_head(self) -> None:
        """Wait for the head of the next request on this connection. Raises `OSError` once the viewer has left."""
        self.head = _head(self._connection)

    def reset(self) -> None:
        """Cut the connection without a word of farewell."""
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


Script: TypeAlias = Callable[[Viewer], None]


class LiveServer:
    """An HTTP server on the loopback. Each connection gets a script: the first the first, all after it the last.

    `heads` takes the heads of the requests.
    """

    def __init__(self, *scripts: Script, heads: list[bytes] | None = None) -> None:
        self._scripts = scripts
        self._heads = [] if heads is None else heads
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._stopping = threading.Event()
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._served = 0
        self._accepting = threading.Thread(target=self._accept)

    @property
    def address(self) -> str:
        """Where the stream is."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/live"

    @property
    def served(self) -> int:
        """How many have connected."""
        return self._served

    def __enter__(self) -> LiveServer:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        for connection in self._connections:
            with contextlib.suppress(OSError):  # its viewer has left
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            script = self._scripts[min(self._served, len(self._scripts) - 1)]
            self._served += 1
            self._connections.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection, script)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket, script: Script) -> None:
        with connection:
            try:
                head = _head(connection)
                self._heads.append(head)
                script(Viewer(connection, head, self._stopping))
            except OSError:
                return  # the viewer has left, or the server stops


def _head(connection: socket.socket) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        if not (more := connection.recv(1)):
            raise ConnectionAbortedError
        head += more
    return head


_SDP = """v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=made\r\nc=IN IP4 0.0.0.0\r\nt=0 0\r\nm=video 0 RTP/AVP 96\r
a=rtpmap:96 H264/90000\r\na=fmtp:96 packetization-mode=1\r\na=control:track1\r\n"""


def play_rtsp(viewer: Viewer, frames: Sequence[bytes], fps: float, start_ticks: int = 0) -> None:
    """What a camera says (RFC 2326), and its frames as RTP within the connection (RFC 6184, one unit a packet)."""
    while True:
        method, _, rest = viewer.head.partition(b" ")
        fields = re.search(rb"(?im)^cseq: *(\d+)", rest)
        assert fields is not None
        lines = [b"RTSP/1.0 200 OK", b"CSeq: " + fields[1], b"Session: 1"]
        body = b""
        if method == b"OPTIONS":
            lines.append(b"Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN")
        elif method == b"DESCRIBE":
            body = _SDP.encode()
            lines += [b"Content-Type: application/sdp", b"Content-Length: %d" % len(body)]
        elif method == b"SETUP":
            assert b"RTP/AVP/TCP" in rest
            lines.append(b"Transport: RTP/AVP/TCP;unicast;interleaved=0-1")
        viewer.send(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        if method == b"PLAY":
            break
        viewer.next_head()
    sequence = 0
    for index, frame in enumerate(frames):
        units = [unit for unit in re.split(rb"\x00?\x00\x00\x01", frame) if unit]
        for unit in units:
            marker = 0x80 if unit is units[-1] else 0
            ticks = (start_ticks + round(index * _TICKS / fps)) % (1 << 32)
            packet = struct.pack(">BBHII", 0x80, marker | 96, sequence % (1 << 16), ticks, 7) + unit
            viewer.send(struct.pack(">cBH", b"$", 0, len(packet)) + packet)
            sequence += 1
        viewer.wait(1 / fps)


def until(condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    """Wait for a condition. Fails with `what` where it does not come true."""
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.005)

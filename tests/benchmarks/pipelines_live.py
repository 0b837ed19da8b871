"""What the benchmarks of pipelines share: a video of cards, live servers of it in a process of their own, slow models.

As a program (`python -m tests.benchmarks.pipelines_live VIDEO COUNT`) it serves the video over HTTP, as MPEG-TS at the
video's own pace, over and over, on COUNT addresses, until its standard input ends.
"""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import onnxruntime

from tests.pipelines_media import LiveServer, Viewer
from tests.unit import models_for_tests
from upwell.tools.demo import digit_data

ROOT = Path(__file__).parents[2]
TICKS = 90_000


def h264_video(path: Path, count: int, fps: int = digit_data.FPS, seed: int = 1) -> Path:
    """Cards of 640 x 480 as H.264 without B frames, as cameras send it, with a key frame every second."""
    shown = digit_data.cards(max(1, round(count / digit_data.FPS / 0.9)), seed)
    options = {"preset": "veryfast", "tune": "zerolatency", "g": str(fps), "crf": "26"}
    pictures = itertools.islice(itertools.cycle(digit_data.video(shown, seed)), count)
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream("libx264", rate=fps, options=options)
        stream.width, stream.height, stream.pix_fmt = digit_data.WIDTH, digit_data.HEIGHT, "yuv420p"
        for picture in pictures:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode())
    return path


class _Unbuffered(io.RawIOBase):
    """Writes to a viewer at once; to nobody once that has left, as a muxer cannot end with an error of its file."""

    def __init__(self, viewer: Viewer) -> None:
        self._viewer = viewer
        self.has_left = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        try:
            if not self.has_left:
                self._viewer.send(bytes(data))
        except OSError:
            self.has_left = True
        return len(data)


def play_for_ever(path: Path, viewer: Viewer) -> None:
    """Send the video frame by frame at its pace, and from the start again, as one stream whose time goes on."""
    viewer.reply()
    with av.open(str(path)) as file:
        source = file.streams.video[0]
        period_s = float(1 / Fraction(source.average_rate or digit_data.FPS))
        frames = [(bytes(packet), packet.is_keyframe) for packet in file.demux(source) if packet.size]
        options = {"flush_packets": "1"}
        sent = _Unbuffered(viewer)
        with av.open(sent, "w", format="mpegts", options=options, buffer_size=188) as out:
            stream = out.add_stream_from_template(source)
            began_s = time.monotonic()
            for number in itertools.count():
                if sent.has_left:
                    return
                data, is_key = frames[number % len(frames)]
                packet = av.Packet(data)
                packet.stream, packet.time_base, packet.is_keyframe = stream, Fraction(1, TICKS), is_key
                packet.pts = packet.dts = round((1 + number * period_s) * TICKS)
                if (left_s := began_s + number * period_s - time.monotonic()) > 0:
                    viewer.wait(left_s)
                out.mux(packet)


@contextmanager
def live_servers(path: Path, count: int = 1) -> Iterator[list[str]]:
    """The addresses of a process that serves the video on so many ports."""
    program = [sys.executable, "-m", "tests.benchmarks.pipelines_live", str(path), str(count)]
    with subprocess.Popen(program, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.stdin.close()


def slow_detector(folder: Path, target_s: float) -> Path:
    """A bundle that takes about that long for a picture."""
    folder.mkdir(parents=True, exist_ok=True)
    once_s = _least_s(models_for_tests.slow_picture(folder, layers=8)) / 8
    models_for_tests.slow_picture(folder, layers=max(1, round(target_s / once_s)))
    return folder


def bare_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """The runtime's own object, with as many threads as the agent has, and like there none that spins."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _least_s(path: Path) -> float:
    session = bare_session(path, 1)
    picture = np.zeros([one if isinstance(one, int) else 1 for one in session.get_inputs()[0].shape], np.float32)
    taken_s = []
    for _ in range(9):
        begin_s = time.perf_counter()
        session.run(None, {"image": picture})
        taken_s.append(time.perf_counter() - begin_s)
    return min(taken_s)  # what it takes where nothing else runs: else the load would be less than told


def main(path: Path, count: int) -> None:
    """Serve until standard input ends."""
    with ExitStack() as servers:
        addresses = [
            servers.enter_context(LiveServer(lambda viewer: play_for_ever(path, viewer))).address for _ in range(count)
        ]
        print(json.dumps(addresses), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

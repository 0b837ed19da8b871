"""Frames a second through a pipeline beside a bare PyAV and ONNX Runtime loop, and what single steps of it take.

Both sides decode the same file of 640 x 480, leave out frames that show no change by the same detector, resize the rest
and run the same model with the same threads, round by round in turn. The loop resizes by FFmpeg, as the pipeline's
decoder does here, where nobody else looks at the frames, or by Pillow. What counts is the time from the first answer to
the last: a start is no throughput. The pipeline decodes in a process of its own, the loop in its only one, so the
processor time of each frame stands beside; the start of that process is in it, and told by itself.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from tests.benchmarks.pipelines_live import bare_session, h264_video
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.edge.server.agent_core import AgentCore
from upwell.pipelines.config.pipelines_check import parse_pipelines
from upwell.pipelines.events.event_rules import EventRule, EventRules
from upwell.pipelines.frame import FoundObject, Frame, Scene
from upwell.pipelines.run.late_answers import LateResults
from upwell.pipelines.run.pipeline_factory import build_pipelines
from upwell.pipelines.sinks.base import Message
from upwell.pipelines.sinks.file_sinks import JsonlFile
from upwell.pipelines.sinks.outbox import Outbox
from upwell.pipelines.sinks.outbox_database import OutboxLimits
from upwell.pipelines.sinks.sink_settings import JsonlSettings
from upwell.pipelines.steps.change import ChangeDetector
from upwell.pipelines.steps.geometry import Zones
from upwell.pipelines.steps.tracker import Tracker
from upwell.shared.platform.cpu_cores import usable_cores
from upwell.shared.tensors import Array
from upwell.tools.demo.digit_data import ASSETS

FRAMES, ROUNDS, TARGET = 250, 9, 0.9
ABOVE = 0.001
MODEL = ASSETS / "edge" / "cards"
OBJECTS, LOOKS, PUTS = 20, 400, 200

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(600)]


def spread(samples: Sequence[float]) -> str:
    """Median, and the 10th and 90th percentile."""
    tenths = statistics.quantiles(samples, n=10)
    return f"{statistics.median(samples):.4g} ({tenths[0]:.4g} to {tenths[-1]:.4g})"


def per_s(answered_s: Sequence[float]) -> float:
    """Answers a second, from the first to the last."""
    return (len(answered_s) - 1) / (answered_s[-1] - answered_s[0])


def processor_s() -> float:
    """Of this process, and of all that it has started and that have ended."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


class Through:
    """The file through a pipeline of `change` and `infer`, around an agent that stays."""

    def __init__(self, agent: AgentCore, video: Path, folder: Path) -> None:
        self._agent, self._folder = agent, folder
        self._text = (
            f"version: 1\npipelines: {{one: {{source: {{video: {video}}}, sinks: [{{jsonl: {folder}/events.jsonl}}],"
            f" steps: [{{change: {{above: {ABOVE}, at_least: 1h}}}}, {{infer: {{model: cards}}}}]}}}}\n"
        )

    def play(self) -> list[float]:
        """When each answer came, in seconds of the monotonic clock."""
        config, _ = parse_pipelines(self._text, self._folder / "pipelines.yaml", None)
        with build_pipelines(config, self._agent, None, LateResults()) as runner:
            return [time.monotonic() for _ in runner.pipelines["one"]]


class Bare:
    """The same by hand. `resize` is who gives the picture the model's size: Pillow, or FFmpeg."""

    def __init__(self, video: Path, threads: int, resize: str = "pillow") -> None:
        self._video, self._by_pillow = video, resize == "pillow"
        self._session = bare_session(MODEL / "model.onnx", threads)

    def play(self) -> list[float]:
        """When each answer came."""
        detector, answered_s = ChangeDetector(ABOVE, None), []
        with av.open(str(self._video)) as file:
            stream = file.streams.video[0]
            stream.thread_type = "AUTO"
            for number, frame in enumerate(file.decode(stream)):
                plane = frame.planes[0]
                luma = np.frombuffer(plane, np.uint8).reshape(frame.height, plane.line_size)[:, : frame.width]
                nothing = np.zeros((0, 0, 3), np.uint8)
                if not detector.is_changed(Frame(number, time.monotonic(), 0.0, nothing, luma)):
                    continue
                self._session.run(None, {"image": self._input(frame)})
                answered_s.append(time.monotonic())
        return answered_s

    def _input(self, frame: av.VideoFrame) -> Array:
        if self._by_pillow:
            picture = Image.fromarray(frame.to_ndarray(format="rgb24"))
            small = np.asarray(picture.resize((320, 240), Image.Resampling.BILINEAR))
        else:
            small = frame.reformat(320, 240, format="rgb24").to_ndarray()
        return np.ascontiguousarray((small.astype(np.float32) / 255).transpose(2, 0, 1))[None]


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return h264_video(tmp_path_factory.mktemp("video") / "cards.mp4", FRAMES)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_pipeline_beside_a_bare_loop(
    threads: int, video: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ratios of answers a second, round by round."""
    config = tmp_path / "agent.yaml"
    edge = f"{{bundle: {MODEL}, runtime: onnx, threads: {threads}, instances: 1}}"
    config.write_text(f"version: 1\nmodels: {{cards: {{edge: {edge}}}}}\n")
    rates: dict[str, list[float]] = {}
    cpu_ms: dict[str, list[float]] = {}
    with embedded_agent(config) as agent:
        sides: dict[str, Callable[[], list[float]]] = {
            "pipeline": Through(agent, video, tmp_path).play,
            "bare": Bare(video, threads).play,
            "bare, resized by FFmpeg": Bare(video, threads, "ffmpeg").play,
        }
        few = h264_video(tmp_path / "few.mp4", 2)
        starts_ms = []
        for _ in range(5):
            before_s = processor_s()
            Through(agent, few, tmp_path).play()
            starts_ms.append(1e3 * (processor_s() - before_s))
        counts = {name: len(play()) for name, play in sides.items()}
        assert len(set(counts.values())) == 1, counts  # else they do not do the same
        for index in range(ROUNDS):
            names = [*sides]
            for name in names[index % len(names) :] + names[: index % len(names)]:
                before_s = processor_s()
                rates.setdefault(name, []).append(per_s(sides[name]()))
                cpu_ms.setdefault(name, []).append(1e3 * (processor_s() - before_s) / FRAMES)
    with capsys.disabled():
        print(f"\n{counts['bare']} of {FRAMES} frames of 640 x 480 answered, {threads} threads, ", end="")
        print(f"{ROUNDS} rounds in turn, target {TARGET}: median (p10 to p90)")
        for name, of in rates.items():
            ratios = [ours / theirs for ours, theirs in zip(rates["pipeline"], of, strict=True)]
            ratio = "" if name == "pipeline" else f"; pipeline to it {spread(ratios)}"
            print(f"  {name}: {spread(of)} answers/s{ratio}; processor {spread(cpu_ms[name])} ms a frame")
        print(f"  a pipeline's start and end alone: processor {spread(starts_ms)} ms")
        print(f"  load of the machine over the last minute: {os.getloadavg()[0]:.1f} on {usable_cores()} cores")


def walking(count: int, look: int) -> tuple[FoundObject, ...]:
    """So many objects in rows, each a little further to the right than in the look before, all around once."""
    boxes = []
    for number in range(count):
        x = (0.05 + 0.9 * ((number * 0.21 + look * 0.004) % 1.0)) - 0.02
        y = 0.04 + 0.9 * number / count
        boxes.append(FoundObject("card", 0.9, (x, y, x + 0.06, y + 0.04)))
    return tuple(boxes)


def taken_us(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """What each call took, in microseconds."""
    taken = []
    for call in calls:
        begin_s = time.perf_counter()
        call()
        taken.append(1e6 * (time.perf_counter() - begin_s))
    return taken


def test_steps_rules_and_outbox(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What following, placing and judging 20 objects of a frame takes, and keeping an event on this disk."""
    zones = Zones({"upper": [(0, 0), (1, 0), (1, 0.5), (0, 0.5)], "door": [(0.4, 0.2), (0.6, 0.2), (0.6, 1), (0.4, 1)]},
                  {"middle": ((0.5, 0.0), (0.5, 1.0))})  # fmt: skip
    tracker = Tracker()
    rules = [
        EventRule("entered", "enter", zone="upper"),
        EventRule("stood", "dwell", zone="door", dwell_s=1.0, where="object.score > 0.5"),
        EventRule("passed", "cross", line="middle", where="object.score > 0.5"),
        EventRule("left", "leave"),
    ]
    judge = EventRules(rules, zones, [], "bench")
    nothing = np.zeros((0, 0, 3), np.uint8)
    frames = [Frame(look + 1, 1.0 + look / 10, 0.0, nothing, nothing[:, :, 0]) for look in range(LOOKS)]
    looks = [walking(OBJECTS, look) for look in range(LOOKS)]
    followed: list[tuple[FoundObject, ...]] = []
    placed: list[tuple[FoundObject, ...]] = []
    detector = ChangeDetector(0.01, None)
    lumas = np.random.default_rng(0).integers(0, 255, (4, 480, 640), np.uint8)
    rows = {
        "change on 640 x 480": taken_us(
            [partial(detector.is_changed, Frame(n, n / 10, 0.0, nothing, lumas[n % 4])) for n in range(LOOKS)]
        ),
        f"track, {OBJECTS} objects": taken_us(
            [
                lambda objects=objects, frame=frame: followed.append(tracker.update(objects, frame.captured_s))  # type: ignore[misc]
                for objects, frame in zip(looks, frames, strict=True)
            ]
        ),
        f"zones, {OBJECTS} objects, 2 zones": taken_us(
            [lambda look=look: placed.append(zones.locate(followed[look])) for look in range(LOOKS)]  # type: ignore[misc]
        ),
        f"events, {OBJECTS} objects, 4 rules": taken_us(
            [
                lambda look=look: judge.take(Scene(frames[look], nothing, placed[look]))  # type: ignore[misc]
                for look in range(LOOKS)
            ]
        ),
    }
    sink = JsonlFile(JsonlSettings(tmp_path / "events.jsonl"))
    with closing(Outbox(tmp_path / "outbox.db", {"bench": [sink]}, OutboxLimits(), lambda _: True)) as outbox:

        def put(count: int) -> None:
            messages = []
            for _ in range(count):
                number = outbox.next_sequence("bench")
                messages.append(Message(f"{number:032x}", "bench", "passed", number, b"x" * 400, b"", "", {}))
            outbox.put(messages)

        rows["outbox, a put of 1 event"] = taken_us([partial(put, 1)] * PUTS)
        rows["outbox, a put of 20 events"] = taken_us([partial(put, 20)] * PUTS)
        assert outbox.flush(30.0)
    probe = tmp_path / "probe"
    with probe.open("wb", buffering=0) as file:

        def append() -> None:
            file.write(b"x" * 4096)
            os.fsync(file)

        rows["for comparison: 4 KiB appended and synchronized"] = taken_us([append] * PUTS)
    assert sum(len(objects) == OBJECTS for objects in followed) > 0.9 * LOOKS  # else it is not what it is called
    with capsys.disabled():
        print(f"\nmicroseconds of each of {LOOKS} looks, of {PUTS} puts: median (p10 to p90)")
        for name, taken in rows.items():
            print(f"  {name}: {spread(taken)}")

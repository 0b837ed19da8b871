"""The demo's second act: a video through a pipeline, from camera to event, with the cloud killed in the middle."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import av

from upwell.edge.server.agent_assembly import embedded_agent
from upwell.pipelines.config.pipelines_check import parse_pipelines
from upwell.pipelines.frame_outcome import AnsweredFrame, percentile
from upwell.pipelines.run.annotated_picture import annotated, jpeg
from upwell.pipelines.run.late_answers import LateResults
from upwell.pipelines.run.pipeline_factory import build_pipelines
from upwell.shared.tensors import Array
from upwell.tools.demo import output_folder as names
from upwell.tools.demo.demo_requests import VideoSummary
from upwell.tools.demo.digit_data import FPS, HEIGHT, WIDTH, Card, cards, length_s
from upwell.tools.demo.output_folder import DemoFolder


def write_video(path: Path, pictures: Iterable[Array]) -> None:
    """Write the pictures as a video of such quality that digits stay readable."""
    with av.open(str(path), "w") as file:
        stream = file.add_stream("mpeg4", rate=FPS)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = WIDTH, HEIGHT, "yuv420p", 8_000_000
        for picture in pictures:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode())


def shown_cards(count: int) -> Sequence[Card]:
    """The cards of the video."""
    return cards(count, seed=7)


def frames_of(shown: Sequence[Card]) -> int:
    """The number of frames of the video."""
    return int(length_s(shown) * FPS)


def run_video(
    place: DemoFolder,
    shown: Sequence[Card],
    kill: Callable[[], None],
    until: Callable[[Iterable[AnsweredFrame]], Iterator[AnsweredFrame]],
) -> VideoSummary:
    """Run the demo's pipelines file over its video; `kill` the cloud after half of the frames."""
    path = place.file(names.PIPELINES)
    events_path = place.file(names.EVENTS)
    config, _ = parse_pipelines(path.read_text(), path, None)
    total, killed_after, answered, picture = frames_of(shown), 0, 0, b""
    results = LateResults()
    with ExitStack() as parts:
        agent = parts.enter_context(embedded_agent(place.file(names.CARDS_AGENT), results))
        runner = parts.enter_context(build_pipelines(config, agent, None, results))
        pipeline = runner.pipelines[names.PIPELINE]
        for frame in until(pipeline):
            answered += 1
            if not killed_after and answered >= total // 2:
                kill()
                killed_after = answered
                picture = jpeg(annotated(frame.scene, pipeline.zones))
        status = pipeline.status
    place.write(names.CARDS_PICTURE, picture)
    return _summary(shown, json_lines(events_path), status.frames, status.latencies_s, killed_after)


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The events of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _summary(
    shown: Sequence[Card],
    events: Sequence[Mapping[str, Any]],
    frames: Mapping[str, int],
    latencies_s: Sequence[float],
    killed_after: int,
) -> VideoSummary:
    counts = Counter(event["event"] for event in events)
    in_order = [card.label for card in sorted(shown, key=lambda card: card.crosses_s)]
    read = [event["objects"][0].get("digits", {}) for event in events if event["event"] == "passed"]
    right = sum(said.get("label") == str(label) for said, label in zip(read, in_order, strict=False))
    return VideoSummary(
        sum(frames.values()),
        frames.get("answered", 0),
        frames.get("late", 0),
        killed_after,
        len(shown),
        (sum(card.enters for card in shown), counts["entered"]),
        (len(shown), counts["passed"]),
        right,
        dict(Counter(str(said.get("route", "none")) for said in read)),
        percentile(sorted(latencies_s), 0.5) or 0.0,
    )

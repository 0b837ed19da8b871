"""Pipelines in tests: a source whose frames are made, videos of cards, and pipelines around a real agent."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av

from upwell.edge.server.agent_assembly import embedded_agent
from upwell.edge.server.agent_core import AgentCore
from upwell.pipelines.config.pipelines_check import parse_pipelines
from upwell.pipelines.frame import Frame
from upwell.pipelines.run.late_answers import LateResults
from upwell.pipelines.run.pipeline_factory import build_pipelines
from upwell.pipelines.run.pipeline_runner import PipelineRunner
from upwell.pipelines.sources.base import SourceEnded, SourceState, SourceStatus
from upwell.shared.tensors import Array
from upwell.tools.demo import digit_data
from upwell.tools.demo.digit_data import ASSETS

LIMIT_S = 30.0
FOLLOWED: tuple[Mapping[str, Any], ...] = (
    {"infer": {"model": "cards"}},
    {"track": {}},
    {
        "zones": {
            "upper": [list(point) for point in digit_data.ZONE],
            "middle": {"line": [list(p) for p in digit_data.LINE]},
        }
    },
)
"""Cards found, followed, and placed."""
READ: Mapping[str, Any] = {"infer": {"model": "digits", "on": "objects", "once": "track", "margin": "0%"}}
"""What each card carries."""


class MadeSource:
    """A source of frames that exist already, in order and none left out; captured when they are taken."""

    def __init__(self, pictures: Iterable[Array], pace_s: float = 0.0) -> None:
        self._pictures = iter(pictures)
        self._pace_s = pace_s
        self._given = 0
        self.finished: list[int] = []
        self.is_closed = False

    def next(self, timeout_s: float) -> Frame | None:
        picture = None if self.is_closed else next(self._pictures, None)
        if picture is None:
            raise SourceEnded("the source has ended")
        if self._pace_s:
            time.sleep(self._pace_s)
        self._given += 1
        return Frame(self._given, time.monotonic(), time.time(), picture, picture[:, :, 1])

    def done(self, frame: Frame) -> None:
        self.finished.append(frame.number)

    @property
    def status(self) -> SourceStatus:
        state = SourceState.ENDED if self.is_closed else SourceState.LIVE
        return SourceStatus(state, decoder="made", given=self._given)

    def close(self) -> None:
        self.is_closed = True


def write_video(path: Path, pictures: Iterable[Array], fps: int = digit_data.FPS) -> Path:
    """The pictures as a video, so good that digits stay readable."""
    with av.open(str(path), "w") as file:
        stream = file.add_stream("mpeg4", rate=fps)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = (
            digit_data.WIDTH,
            digit_data.HEIGHT,
            "yuv420p",
            8_000_000,
        )
        for picture in pictures:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode())
    return path


def write_agent(folder: Path, policy: Mapping[str, Any] = {}, cloud: str = "") -> Path:
    """An agent.yaml with the detector of cards and the digits model, which has a cloud side where there is a cloud."""
    digits: dict[str, Any] = {"edge": {"bundle": str(ASSETS / "edge" / "digits"), "runtime": "onnx"}}
    config: dict[str, Any] = {
        "agent": {"listen": ["127.0.0.1:0"], "state_dir": "state"},
        "policy": "policy.yaml",
        "models": {"cards": {"edge": {"bundle": str(ASSETS / "edge" / "cards"), "runtime": "onnx"}}, "digits": digits},
    }
    if cloud:
        config["cloud"] = {"endpoint": cloud}
        digits["cloud"] = {"model": "digits-large"}
    (folder / "policy.yaml").write_text(json.dumps({"version": 1, **policy}))
    path = folder / "agent.yaml"
    path.write_text(json.dumps({"version": 1, **config}))
    return path


def pipelines_text(folder: Path, **pipelines: Mapping[str, Any]) -> str:
    """A pipelines.yaml (JSON is YAML); each pipeline has a file of events called after it unless it names sinks."""
    written = {
        name: {"sinks": [{"jsonl": str(folder / f"{name}.jsonl")}], **pipeline} for name, pipeline in pipelines.items()
    }
    return json.dumps({"version": 1, "pipelines": written})


@dataclass
class RunningPipelines:
    """Pipelines around an agent."""

    agent: AgentCore
    runner: PipelineRunner
    folder: Path

    def events(self, name: str) -> list[dict[str, Any]]:
        """What the file of the pipeline's events has."""
        path = self.folder / f"{name}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait(self) -> None:
        """Until every source is over."""
        end_s = time.monotonic() + LIMIT_S
        while not self.runner.is_over:
            assert time.monotonic() < end_s, "the pipelines did not end"
            time.sleep(0.01)


@contextmanager
def running_pipelines(folder: Path, agent_yaml: Path, text: str) -> Iterator[RunningPipelines]:
    """The pipelines of this text, started. At the end what they said is in their sinks."""
    config, _ = parse_pipelines(text, folder / "pipelines.yaml", None)
    results = LateResults()
    with (
        embedded_agent(agent_yaml, results) as agent,
        build_pipelines(config, agent, folder / "state", results) as runner,
    ):
        runner.start()
        yield RunningPipelines(agent, runner, folder)

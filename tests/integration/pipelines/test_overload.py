"""A source three times as fast as the device: answers stay in time, each other frame has a reason, the sums agree."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from tests.unit import models_for_tests
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.edge.server.agent_core import AgentCore
from upwell.pipelines.events.event_rules import EventRule, EventRules
from upwell.pipelines.frame import Frame
from upwell.pipelines.frame_outcome import AnsweredFrame
from upwell.pipelines.run.frame_loop import REASONS, FrameLoop
from upwell.pipelines.run.infer_step import Inference, InferFrame, InferSettings
from upwell.pipelines.sources.base import SourceEnded, SourceState, SourceStatus
from upwell.pipelines.steps.geometry import Zones

PICTURE = np.full((48, 64, 3), 90, np.uint8)
FRAMES = 90


class LiveSource:
    """A camera with one slot: a frame each `period_s`, captured whether anybody takes it or not, until there were all.

    With `queues` it keeps them all, as a program does that reads frame by frame.
    """

    def __init__(self, period_s: float, count: int, *, queues: bool = False) -> None:
        self._period_s, self._count, self._queues = period_s, count, queues
        self._began_s = time.monotonic()
        self._given = self._superseded = self._number = 0

    def next(self, timeout_s: float) -> Frame | None:
        if self._number >= self._count:
            raise SourceEnded("the source has ended")
        newest = min(self._count, int((time.monotonic() - self._began_s) / self._period_s))
        if newest <= self._number:
            wait_s = self._began_s + (self._number + 1) * self._period_s - time.monotonic()
            time.sleep(max(0.0, min(timeout_s, wait_s)))
            if wait_s > timeout_s:
                return None
            newest = self._number + 1
        taken = self._number + 1 if self._queues else newest
        self._superseded += taken - self._number - 1
        self._number = taken
        self._given += 1
        captured_s = self._began_s + taken * self._period_s
        captured_unix_s = time.time() - (time.monotonic() - captured_s)
        return Frame(taken, captured_s, captured_unix_s, PICTURE, PICTURE[:, :, 0])

    def done(self, frame: Frame) -> None:
        pass

    @property
    def status(self) -> SourceStatus:
        return SourceStatus(SourceState.LIVE, given=self._given, superseded=self._superseded)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentCore]:
    folder = tmp_path_factory.mktemp("slow")
    models_for_tests.slow_picture(folder, layers=12)
    config = folder / "agent.yaml"
    config.write_text(
        f"version: 1\nmodels: {{slow: {{edge: {{bundle: {folder}, runtime: onnx, threads: 1, instances: 1}}}}}}\n"
    )
    with embedded_agent(config) as agent:
        yield agent


def taken_s(agent: AgentCore) -> float:
    """What the device takes for a frame at its best, so that the load is never less than what the tests say."""
    runs_s = []
    for _ in range(9):
        begin_s = time.monotonic()
        agent.infer("slow", {"image": PICTURE})
        runs_s.append(time.monotonic() - begin_s)
    return min(runs_s)


def overloaded(agent: AgentCore, source: LiveSource, deadline_s: float) -> tuple[FrameLoop, list[AnsweredFrame]]:
    """The frames of the source through a pipeline with an event for each answer, to the end."""
    step = InferFrame(Inference(agent, InferSettings("slow"), "camera"))
    rules = EventRules([EventRule("seen", "frame")], Zones({}, {}))
    with FrameLoop("camera", source, [step], rules, deadline_s) as pipeline:
        return pipeline, list(pipeline)


def test_at_six_times_the_load_what_is_answered_is_answered_in_time(agent: AgentCore) -> None:
    run_s = taken_s(agent)
    deadline_s = 20 * run_s
    pipeline, answered = overloaded(agent, LiveSource(run_s / 6, FRAMES), deadline_s)
    status = pipeline.status
    assert all(one.latency_s <= deadline_s for one in answered)
    assert status.captured == FRAMES == sum(status.frames.values())
    assert status.frames["answered"] == status.events["seen"] == len(answered) > 0
    assert set(status.frames) <= {"answered", *REASONS}
    assert status.frames["superseded"] >= FRAMES // 3  # five of six, fewer if it was timed while slower
    numbers = [one.scene.frame.number for one in answered]
    assert numbers == sorted(set(numbers))


def test_before_the_first_frame_each_fate_stands_at_zero(agent: AgentCore) -> None:
    """A counter that is there only from its first increment on hides that one from a rate."""
    step = InferFrame(Inference(agent, InferSettings("slow"), "camera"))
    with FrameLoop("camera", LiveSource(1.0, 1), [step], EventRules([], Zones({}, {}))) as pipeline:
        assert pipeline.status.frames == dict.fromkeys(("answered", *REASONS), 0)


def test_a_source_that_queues_grows_late_and_every_late_frame_is_counted_not_answered(agent: AgentCore) -> None:
    """The naive loop, with a deadline: no answer of it is old, so in the end there is none."""
    run_s = taken_s(agent)
    deadline_s = 5 * run_s
    pipeline, answered = overloaded(agent, LiveSource(run_s / 3, FRAMES, queues=True), deadline_s)
    status = pipeline.status
    assert all(one.latency_s <= deadline_s for one in answered)
    assert status.captured == FRAMES == sum(status.frames.values())
    assert status.frames["answered"] == len(answered)
    assert status.frames["superseded"] == 0
    assert status.frames["late"] + status.frames["refused"] > 0
    assert "late" in status.last_failure or "refused" in status.last_failure

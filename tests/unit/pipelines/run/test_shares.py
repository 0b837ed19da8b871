"""Several pipelines on one busy device, in virtual time: who has the runs, by the policy's priorities and rates."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from upwell.edge.admission.request_admission import Admission
from upwell.edge.policy.router_service import RouterService
from upwell.shared.errors import UpwellError
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.scheduling.run_queue import QueuedRun, RunQueue

RUN_S, LENGTH_S = 0.030, 20.0


@dataclass
class Camera:
    """A pipeline that keeps the latest frame: it asks about the newest one when it is done with the one before."""

    name: str
    fps: float
    deadline_s: float = 0.2
    phase_s: float = 0.0
    taken: int = -1

    def newest(self, now_s: float) -> int:
        return math.floor((now_s - self.phase_s) * self.fps + 1e-9)

    def captured_s(self, number: int) -> float:
        return self.phase_s + number / self.fps


class Device:
    """Cameras around the agent's admission and its queue of runs, with a clock of their own."""

    def __init__(self, policy: Mapping[str, Any], cameras: list[Camera]) -> None:
        self.answered: Counter[str] = Counter()
        self.latest_s: dict[str, float] = {}
        self._router, self._admission = RouterService(Policy.model_validate({"version": 1, **policy})), Admission()
        self._queue = RunQueue()
        self._waiting: dict[QueuedRun, tuple[Camera, float]] = {}
        self._begun: set[QueuedRun] = set()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._ids, self._now_s = itertools.count(), 0.0
        for camera in cameras:
            self._at(camera.phase_s, lambda camera=camera: self._ask(camera))  # type: ignore[misc]  # bound now
        while self._events and self._events[0][0] < LENGTH_S:
            self._now_s, _, happen = heapq.heappop(self._events)
            happen()
            self._follow()

    def _at(self, at_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._ids), happen))

    def _next(self, camera: Camera) -> None:
        """The newest frame now, or the next one when it comes."""
        newest = camera.newest(self._now_s)
        at_s = self._now_s if newest > camera.taken else camera.captured_s(camera.taken + 1)
        self._at(at_s, lambda: self._ask(camera))

    def _ask(self, camera: Camera) -> None:
        camera.taken = camera.newest(self._now_s)
        captured_s, tags = camera.captured_s(camera.taken), {"pipeline": camera.name}
        settings = self._router.verdict("model", tags, (1000,)).settings
        try:
            claim = self._admission.admit("model", settings, tags, self._now_s)
            run = QueuedRun(captured_s + camera.deadline_s, replace(claim, run_s=RUN_S, arrived_s=self._now_s))
            self._queue.join(run, self._now_s)
        except UpwellError:
            self._next(camera)
        else:
            self._waiting[run] = camera, captured_s

    def _follow(self) -> None:
        for run, (camera, _) in [*self._waiting.items()]:
            if run.error is not None:  # displaced
                del self._waiting[run]
                self._next(camera)
            elif run in self._queue.running and run not in self._begun:
                self._begun.add(run)
                self._at(self._now_s + RUN_S, lambda run=run: self._end(run))  # type: ignore[misc]  # bound now

    def _end(self, run: QueuedRun) -> None:
        camera, captured_s = self._waiting.pop(run)
        self._queue.leave(run, self._now_s)
        self.answered[camera.name] += 1
        self.latest_s[camera.name] = max(self.latest_s.get(camera.name, 0.0), self._now_s - captured_s)
        self._next(camera)


def cameras(count: int, fps: float = 30.0) -> list[Camera]:
    return [Camera(f"camera{number}", fps, phase_s=0.007 * number) for number in range(count)]


def test_pipelines_alike_share_a_device_that_is_too_slow_for_them_evenly() -> None:
    device = Device({}, cameras(4))
    shares = [device.answered[f"camera{number}"] for number in range(4)]
    assert sum(shares) == pytest.approx(LENGTH_S / RUN_S, rel=0.02)  # it is never idle
    assert min(shares) >= 0.9 * max(shares)
    assert max(device.latest_s.values()) <= 0.2 + 1e-9


def test_a_greedy_pipeline_gets_no_more_than_any_other() -> None:
    device = Device({}, [*cameras(3, fps=10.0), Camera("greedy", 200.0, phase_s=0.003)])
    shares = [device.answered[f"camera{number}"] for number in range(3)]
    assert device.answered["greedy"] <= 1.05 * min(shares)  # though it has 20 frames for each of theirs
    assert sum(device.answered.values()) == pytest.approx(LENGTH_S / RUN_S, rel=0.02)


def test_a_rule_gives_one_pipeline_the_device_first_and_the_others_the_rest() -> None:
    rule = {"name": "gate", "match": {"tags": {"pipeline": "gate"}}, "set": {"priority": "high"}}
    device = Device({"rules": [rule]}, [*cameras(3), Camera("gate", 10.0, phase_s=0.005)])
    assert device.answered["gate"] >= 0.99 * 10 * LENGTH_S  # each of its frames
    shares = [device.answered[f"camera{number}"] for number in range(3)]
    assert sum(shares) == pytest.approx(LENGTH_S / RUN_S - 10 * LENGTH_S, rel=0.03)
    assert min(shares) >= 0.9 * max(shares)
    assert max(device.latest_s.values()) <= 0.2 + 1e-9


def test_a_rate_for_each_pipeline_bounds_the_greedy_one_alone() -> None:
    rate = {"source": {"tag": "pipeline", "rate": "8/s"}}
    device = Device({"defaults": rate}, [*cameras(2, fps=5.0), Camera("greedy", 200.0, phase_s=0.003)])
    assert 8 * LENGTH_S * 0.95 <= device.answered["greedy"] <= 8 * (LENGTH_S + 1)
    assert all(device.answered[f"camera{number}"] >= 0.99 * 5 * LENGTH_S for number in range(2))

"""Sends the demo's cases through a real agent and records the answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from upwell.edge.request.answer import Answer
from upwell.edge.server.agent_core import AgentCore
from upwell.shared.errors import UpwellError
from upwell.shared.routing.reasons import Route
from upwell.shared.tensors import Array
from upwell.tools.demo.digit_data import DemoCase


@dataclass(frozen=True)
class DemoOutcome:
    """One request as its caller saw it: begun at `began_s` (monotonic), finished after `elapsed_s`.

    `answer` is None if the agent raised; then `error` is the error's name.
    """

    case: DemoCase
    began_s: float
    elapsed_s: float
    answer: Answer | None
    error: str = ""

    @property
    def correct(self) -> Array:
        """Which of the case's digits were read correctly, bool [digits]; none without an answer."""
        if self.answer is None:
            return np.zeros(self.case.labels.shape, dtype=np.bool_)
        read: Array = self.answer.outputs["scores"][0].reshape(-1, 10).argmax(-1)
        right: Array = read == self.case.labels
        return right

    @property
    def reason(self) -> str:
        """The agent's reason, or the error's name."""
        return self.error if self.answer is None else str(self.answer.reason)

    @property
    def went_up(self) -> bool:
        """Whether anything of the request was sent to the cloud, answered or not."""
        return self.answer is not None and self.answer.timings.uplink_s is not None

    @property
    def from_cloud(self) -> bool:
        """Whether the answer is the cloud's."""
        return self.answer is not None and self.answer.route is Route.CLOUD


@dataclass(frozen=True)
class DemoRun:
    """The outcomes of some cases, in the order sent, and the bytes sent to the cloud, by model."""

    outcomes: tuple[DemoOutcome, ...]
    bytes_up: Mapping[str, int]

    def of(self, model: str) -> tuple[DemoOutcome, ...]:
        """The outcomes of one model's cases."""
        return tuple(one for one in self.outcomes if one.case.model == model)


def run(agent: AgentCore, cases: Iterable[DemoCase]) -> DemoRun:
    """Send the cases one after the other, each once the previous one is answered."""
    before = _bytes_up(agent)
    outcomes = tuple(_ask(agent, case) for case in cases)
    return _finished(agent, outcomes, before)


@dataclass(frozen=True)
class Outage:
    """A run in which the cloud died at `killed_at_s` (monotonic): the requests before and after."""

    before: DemoRun
    after: DemoRun
    killed_at_s: float


def run_through_outage(
    agent: AgentCore, cases: Iterable[DemoCase], kill: Callable[[], None], *, kill_after: int, rate_hz: float
) -> Outage:
    """Send the cases at a steady rate, and `kill` the cloud once `kill_after` of them have been answered."""
    start_s = time.monotonic()
    at_start, outcomes = _bytes_up(agent), list[DemoOutcome]()
    before, killed_at_s = DemoRun((), {}), start_s
    for index, case in enumerate(cases):
        if index == kill_after:
            before = _finished(agent, tuple(outcomes), at_start)
            kill()
            killed_at_s = time.monotonic()
        time.sleep(max(0.0, start_s + index / rate_hz - time.monotonic()))
        outcomes.append(_ask(agent, case))
    at_kill = {model: at_start[model] + count for model, count in before.bytes_up.items()}
    return Outage(before, _finished(agent, tuple(outcomes[kill_after:]), at_kill), killed_at_s)


def _ask(agent: AgentCore, case: DemoCase) -> DemoOutcome:
    began_s = time.monotonic()
    try:
        answer, error = agent.infer(case.model, {"image": case.png}), ""
    except UpwellError as failure:
        answer, error = None, type(failure).__name__
    return DemoOutcome(case, began_s, time.monotonic() - began_s, answer, error)


def _finished(agent: AgentCore, outcomes: tuple[DemoOutcome, ...], before: Mapping[str, int]) -> DemoRun:
    return DemoRun(outcomes, {model: total - before[model] for model, total in _bytes_up(agent).items()})


def _bytes_up(agent: AgentCore) -> dict[str, int]:
    """The agent's own counter of bytes sent: whole messages, whatever their outcome."""
    count = agent.metrics.registry.get_sample_value
    return {model: int(count("upwell_uplink_bytes_total", {"model": model}) or 0) for model in agent.models}

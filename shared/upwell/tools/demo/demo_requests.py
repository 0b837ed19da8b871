"""Sends the demo's cases through a real agent, and makes the figures of the report from the answers.

The figures are also the JSON of `upwell demo --json`.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from upwell.edge.request.answer import Answer
from upwell.edge.server.agent_core import AgentCore
from upwell.shared.errors import UpwellError
from upwell.shared.routing.hardness import RISING, hardness
from upwell.shared.routing.policy.settings import HardSettings, Settings
from upwell.shared.routing.reasons import Route
from upwell.shared.tensors import Array
from upwell.tools.demo.digit_data import DIGITS, PAGES, DemoCase


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


@dataclass(frozen=True)
class Summary:
    """The figures of one run.

    `accuracy` is the share of digits read correctly, an unanswered request counting as wrong. `p50_s` and `p95_s` are
    the caller's waiting times for an answer, None without one. `cloud_share` is the share of requests of which
    anything was sent to the cloud; `bytes_up` counts whole messages. `reasons` counts requests, `kinds` has the same
    figures for each kind of request.
    """

    requests: int
    answered: int
    digits: int
    accuracy: float
    p50_s: float | None
    p95_s: float | None
    cloud_share: float
    bytes_up: int
    degraded: int
    reasons: Mapping[str, int]
    kinds: Mapping[str, Summary]


@dataclass(frozen=True)
class OutageSummary:
    """A run in which the cloud was killed after `killed_after` requests; `late` counts those over the deadline.

    `cloud_after_kill` counts answers of the cloud that arrived after it was dead.
    """

    requests: int
    answered: int
    late: int
    degraded: int
    deadline_s: float
    slowest_s: float
    killed_after: int
    cloud_after_kill: int
    before: Summary
    after: Summary


@dataclass(frozen=True)
class VideoSummary:
    """The pipeline's results on the video, beside the truth. `late` are frames that missed the deadline.

    `entered` and `passed` are pairs: how many cards did, and how many events said so. `read_right` are the cards
    whose digit was read correctly, `read_by` how many cards each route read. The cloud was killed after
    `killed_after` frames.
    """

    frames: int
    answered: int
    late: int
    killed_after: int
    cards: int
    entered: tuple[int, int]
    passed: tuple[int, int]
    read_right: int
    read_by: Mapping[str, int]
    p50_s: float


def summarize(run: DemoRun) -> Summary:
    """The figures of a run, and those of each kind of request in it."""
    whole = _summary(run.outcomes, sum(run.bytes_up.values()))
    kinds = {model: _summary(run.of(model), sent) for model, sent in run.bytes_up.items()}
    return replace(whole, kinds={model: kind for model, kind in kinds.items() if kind.requests})


def summarize_outage(outage: Outage, deadline_s: float) -> OutageSummary:
    """The figures of a run through an outage, against the deadline of the policy."""
    before, after = summarize(outage.before), summarize(outage.after)
    every = [*outage.before.outcomes, *outage.after.outcomes]
    return OutageSummary(
        requests=before.requests + after.requests,
        answered=before.answered + after.answered,
        late=sum(one.elapsed_s > deadline_s for one in every),
        degraded=before.degraded + after.degraded,
        deadline_s=deadline_s,
        slowest_s=max(one.elapsed_s for one in every),
        killed_after=before.requests,
        cloud_after_kill=sum(one.from_cloud for one in outage.after.outcomes),
        before=before,
        after=after,
    )


def _summary(outcomes: Sequence[DemoOutcome], bytes_up: int) -> Summary:
    correct = [one.correct for one in outcomes]
    digits = sum(len(one) for one in correct)
    times_s = [one.elapsed_s for one in outcomes if one.answer is not None]
    p50_s, p95_s = (float(p) for p in np.percentile(times_s, (50, 95))) if times_s else (None, None)
    return Summary(
        requests=len(outcomes),
        answered=len(times_s),
        digits=digits,
        accuracy=float(sum(one.sum() for one in correct) / max(1, digits)),
        p50_s=p50_s,
        p95_s=p95_s,
        cloud_share=sum(one.went_up for one in outcomes) / max(1, len(outcomes)),
        bytes_up=bytes_up,
        degraded=sum(one.answer is not None and one.answer.degraded for one in outcomes),
        reasons=dict(Counter(one.reason for one in outcomes).most_common()),
        kinds={},
    )


@dataclass(frozen=True)
class ThresholdSweep:
    """Accuracy against the share of requests sent to the cloud, float64 [points] in 0..1 each, as the threshold
    moves.

    The first point sends only the large cases, each next one the hardest remaining case, the last one all.
    """

    shares: Array
    accuracies: Array


def sweep(edge: Sequence[DemoOutcome], cloud: Sequence[DemoOutcome], settings: Settings) -> ThresholdSweep:
    """Combine the outcomes of two runs over the same cases: the device's for cases that stay, the cloud's for the
    others.
    """
    pairs = list(zip(edge, cloud, strict=True))
    large = [pair for pair in pairs if len(pair[0].case.png) > settings.large_above_bytes]
    small = [pair for pair in pairs if len(pair[0].case.png) <= settings.large_above_bytes]
    small.sort(key=lambda pair: certainty(pair[0], settings))
    start = sum(_right(high) for _, high in large) + sum(_right(low) for low, _ in small)
    gains = np.cumsum([0, *(_right(high) - _right(low) for low, high in small)])
    digits = sum(len(low.case.labels) for low, _ in pairs)
    return ThresholdSweep(
        shares=(len(large) + np.arange(len(small) + 1)) / len(pairs),
        accuracies=(start + gains) / digits,
    )


def certainty(outcome: DemoOutcome, settings: Settings) -> float:
    """The device's certainty by the policy's measure, whatever its direction: smaller is harder."""
    if outcome.answer is None:
        return -math.inf
    hard = settings.hard or HardSettings()
    value = hardness(outcome.answer.outputs["scores"], hard.measure, logits=False)[0]
    if math.isnan(value):
        return -math.inf
    return -value if hard.measure in RISING else value


def _right(outcome: DemoOutcome) -> int:
    return int(outcome.correct.sum())


_KINDS: Mapping[str, str] = {DIGITS: "single digits", PAGES: "pages of 60"}


def runs_table(runs: Mapping[str, Summary]) -> RenderableType:
    """The three runs, each with its two kinds of requests, the reasons, and the latencies."""
    named = {name.replace("_", " "): run for name, run in runs.items()}
    table = _table("requests", "digits right", "p50", "p95", "sent up", "bytes up")
    for name, run in named.items():
        table.add_row(Text(name, style="bold"), *_cells(run))
        for kind, part in run.kinds.items():
            table.add_row(f"  {_KINDS[kind]}", *_cells(part), style="dim")
        table.add_section()
    note = (
        f"Latency: the waiting time of a caller of Agent.infer, one request at a time, on {os.cpu_count()} cores. The "
        "cloud is a process on loopback; over a real link, requests sent up also take its round trip."
    )
    heading = Text("Handwritten digits held out from training", style="bold")
    return Group(heading, table, _reasons(named), "", Text(note, style="dim"))


def outage_table(outage: OutageSummary) -> RenderableType:
    """What callers got before and after the cloud died, and the outcome in one sentence."""
    parts = {"before": outage.before, "after": outage.after}
    table = _table("requests", "answered", "degraded", "digits right", "p50", "p95")
    for name, part in parts.items():
        counts = (str(part.requests), str(part.answered), str(part.degraded))
        times = (_milliseconds(part.p50_s), _milliseconds(part.p95_s))
        table.add_row(Text(name, style="bold"), *counts, _percent(part.accuracy), *times)
    all_well = outage.answered == outage.requests and not outage.late
    outcome = Text.assemble(
        (f"{outage.answered} of {outage.requests} requests answered", "bold green" if all_well else "bold red"),
        f", {outage.late} later than the deadline of {outage.deadline_s * 1e3:.0f} ms; the slowest took "
        f"{outage.slowest_s * 1e3:.0f} ms.",
    )
    return Group(Text("The cloud is killed mid-run", style="bold"), table, _reasons(parts), "", outcome)


def video_table(summary: VideoSummary) -> RenderableType:
    """The pipeline's results beside the truth, and the outcome in one sentence."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for what, (true, told) in (("cards that crossed the line", summary.passed), ("entered the zone", summary.entered)):
        table.add_row(f" {what}:", f"{told} reported, {true} true")
    by = ", ".join(f"{count} by the {route}" for route, count in summary.read_by.items())
    table.add_row(" digits read correctly:", f"{summary.read_right} of {summary.cards} ({by})")
    all_well = summary.answered == summary.frames
    outcome = Text.assemble(
        (f"{summary.answered} of {summary.frames} frames answered", "bold green" if all_well else "bold red"),
        f", {summary.late} late, though the cloud was killed after frame {summary.killed_after}; from capture to "
        f"answer {summary.p50_s * 1e3:.0f} ms.",
    )
    return Group(Text("A video: find, follow, read, count", style="bold"), table, "", outcome)


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _reasons(runs: Mapping[str, Summary]) -> Table:
    """The reasons of the answers, and their counts."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for name, run in runs.items():
        table.add_row(f" {name}:", ", ".join(f"{count} {reason}" for reason, count in run.reasons.items()))
    return table


def _cells(run: Summary) -> tuple[str, ...]:
    times = (_milliseconds(run.p50_s), _milliseconds(run.p95_s))
    return (str(run.requests), _percent(run.accuracy), *times, f"{run.cloud_share * 100:.0f} %", _size(run.bytes_up))


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def _milliseconds(time_s: float | None) -> str:
    return "none" if time_s is None else f"{time_s * 1e3:.1f} ms"


def _size(size_bytes: int) -> str:
    return f"{size_bytes} B" if size_bytes < 1000 else f"{size_bytes / 1000:.0f} kB"

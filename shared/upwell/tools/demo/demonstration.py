"""The demo itself: three runs over the same requests, one through an outage, and the files it leaves behind."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.progress import Progress

from upwell.edge.agent import Agent
from upwell.shared.config.yaml import load_yaml
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.settings import Settings
from upwell.tools.demo import folder as names
from upwell.tools.demo.cases import DIGITS, PAGES, DemoCase, demo_cases
from upwell.tools.demo.folder import DemoFolder
from upwell.tools.demo.runs import DemoOutcome, DemoRun, Outage, run, run_through_outage
from upwell.tools.demo.service import CloudProcess
from upwell.tools.demo.summary import OutageSummary, Summary, summarize, summarize_outage
from upwell.tools.demo.sweep import certainty, sweep


@dataclass(frozen=True)
class Length:
    """How much is sent: pictures of each kind to every run; requests and their rate through the outage."""

    digits: int
    pages: int
    outage: int
    kill_after: int
    rate_hz: float


FULL = Length(digits=594, pages=40, outage=300, kill_after=100, rate_hz=100.0)
QUICK = Length(digits=200, pages=14, outage=60, kill_after=20, rate_hz=100.0)


@dataclass(frozen=True)
class Example:
    """A digit that the device reads wrongly and the cloud rightly."""

    label: int
    read_as: int


@dataclass(frozen=True)
class DemoReport:
    """What came of it. `runs` holds edge_only, cloud_only and hybrid; `has_plot` is False without matplotlib."""

    runs: Mapping[str, Summary]
    outage: OutageSummary
    endpoint: str
    example: Example | None
    has_plot: bool


@dataclass(frozen=True)
class _Recorded:
    edge: DemoRun
    cloud: DemoRun
    hybrid: DemoRun
    outage: Outage
    endpoint: str

    @property
    def runs(self) -> dict[str, Summary]:
        runs = {"edge_only": self.edge, "cloud_only": self.cloud, "hybrid": self.hybrid}
        return {name: summarize(one) for name, one in runs.items()}


def demonstrate(place: DemoFolder, engine: str, runtime: str, length: Length, progress: Progress) -> DemoReport:
    """Run it all, and write everything but the report into `place`. Raises `UpwellError`."""
    place.write_models()
    with _logging_to(place.log(names.AGENT_LOG)):
        recorded = _record(place, engine, runtime, length, progress)
    settings = load_yaml(place.file(names.POLICY), Policy).settings(DIGITS, None)
    example = _write_pictures(place, recorded, settings)
    outage = summarize_outage(recorded.outage, settings.deadline_s)
    has_plot = _write_plot(place, recorded, settings, progress)
    return DemoReport(recorded.runs, outage, recorded.endpoint, example, has_plot)


def _record(place: DemoFolder, engine: str, runtime: str, length: Length, progress: Progress) -> _Recorded:
    cases = demo_cases(length.digits, length.pages)
    starting = progress.add_task("starting the cloud service", total=None)
    with CloudProcess(place.file("cloud"), engine, place.log(names.CLOUD_LOG)) as cloud:
        progress.remove_task(starting)
        place.write_settings(runtime, cloud.endpoint)
        edge_only = _run_alone(place.file(names.EDGE_ONLY), cases, progress, "edge only")
        cloud_only = _run_alone(place.file(names.CLOUD_ONLY), cases, progress, "cloud only")
        with Agent.from_config(place.file(names.AGENT)) as agent:
            hybrid = run(agent, progress.track(cases, description="hybrid"))
            outage = run_through_outage(
                agent,
                progress.track(cases[: length.outage], description="outage"),
                cloud.kill,
                kill_after=length.kill_after,
                rate_hz=length.rate_hz,
            )
        return _Recorded(edge_only, cloud_only, hybrid, outage, cloud.endpoint)


def _run_alone(config: Path, cases: Sequence[DemoCase], progress: Progress, description: str) -> DemoRun:
    with Agent.from_config(config) as agent:
        return run(agent, progress.track(cases, description=description))


def _write_pictures(place: DemoFolder, recorded: _Recorded, settings: Settings) -> Example | None:
    """Three pictures to play on with: an easy digit, one that the cloud has to read, and a page."""
    cases = [one.case for one in recorded.edge.outcomes]
    singles = [index for index, case in enumerate(cases) if case.model == DIGITS]
    ranks = {index: certainty(recorded.edge.outcomes[index], settings) for index in singles}
    saved = [
        index
        for index in singles
        if recorded.hybrid.outcomes[index].from_cloud
        and recorded.hybrid.outcomes[index].correct.all()
        and not recorded.edge.outcomes[index].correct.any()
    ]
    hard = min(saved or singles, key=lambda index: ranks[index])
    place.write(names.EASY, cases[max(singles, key=lambda index: ranks[index])].png)
    place.write(names.HARD, cases[hard].png)
    place.write(names.PAGE, next(case for case in cases if case.model == PAGES).png)
    return Example(int(cases[hard].labels[0]), _read(recorded.edge.outcomes[hard])) if saved else None


def _read(outcome: DemoOutcome) -> int:
    assert outcome.answer is not None  # noqa: S101  the device answers every case of the edge run
    return int(np.argmax(outcome.answer.outputs["scores"]))


def _write_plot(place: DemoFolder, recorded: _Recorded, settings: Settings, progress: Progress) -> bool:
    try:
        from upwell.tools.demo.plot import draw
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        return False
    drawing = progress.add_task("drawing", total=None)
    edge, cloud = recorded.edge, recorded.cloud
    every = sweep(edge.outcomes, cloud.outcomes, settings)
    singles = sweep(edge.of(DIGITS), cloud.of(DIGITS), settings)
    place.write(names.PLOT, draw(recorded.runs, every, singles, recorded.outage, settings))
    progress.remove_task(drawing)
    return True


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """The agent's log goes to a file, so that the report stays readable."""
    logger = logging.getLogger("upwell")
    handler = logging.FileHandler(path, mode="w", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        handler.close()

"""The demo itself: three runs over the same requests, one of them through an outage, and the output files.

Its cloud side is `upwell serve` in its own process.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, TypeVar

import numpy as np
from rich.progress import Progress

from upwell.edge.server.agent_assembly import embedded_agent
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import UpwellError
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.settings import Settings
from upwell.tools.demo import output_folder as names
from upwell.tools.demo.demo_requests import (
    DemoOutcome,
    DemoRun,
    Outage,
    OutageSummary,
    Summary,
    VideoSummary,
    certainty,
    run,
    run_through_outage,
    summarize,
    summarize_outage,
    sweep,
)
from upwell.tools.demo.digit_data import DIGITS, PAGES, demo_cases, video
from upwell.tools.demo.output_folder import DemoFolder

_READY = re.compile(r"serving on (\S+:\d+)")
_START_LIMIT_S = 60.0
"""Time limit of the start; importing torch can take most of it on a small machine."""
_STOP_LIMIT_S = 5.0
_SHOWN_LINES = 12


class ServiceNotStarted(UpwellError):
    """The service ended or stayed silent before it was ready; the text has its last lines."""


class CloudProcess:
    """A running service, as a context manager: on entry it serves at `endpoint`, and on exit it has ended.

    Its standard error goes to the file `log`. Entering raises `ServiceNotStarted`.
    """

    def __init__(self, models: Path, engine: str, log: Path) -> None:
        self._arguments = ["serve", "--models", str(models), "--engine", engine, "--listen", "127.0.0.1:0"]
        self._log = log
        self._lines: deque[str] = deque(maxlen=_SHOWN_LINES)
        self._spoke = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self.endpoint = ""

    def __enter__(self) -> CloudProcess:
        """Start the service and wait until it is ready."""
        command = [sys.executable, "-m", "upwell.tools.entry", *self._arguments]
        self._process = subprocess.Popen(  # noqa: S603  our own command line
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            # Without it Python would prefer modules in the current folder.
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
        assert self._process.stderr is not None  # noqa: S101  asked for above
        self._reader = threading.Thread(target=self._read, args=(self._process.stderr,), daemon=True)
        try:
            self._reader.start()
            self._spoke.wait(_START_LIMIT_S)
            if not self.endpoint:
                raise ServiceNotStarted(self._why())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process, gently if it listens."""
        self._end()

    def kill(self) -> None:
        """Kill the process at once, as a power cut would (SIGKILL), and do not wait for it."""
        assert self._process is not None  # noqa: S101  entered before
        self._process.kill()

    def _read(self, stream: IO[str]) -> None:
        with stream, self._log.open("w", encoding="utf-8") as log:
            for line in stream:
                log.write(line)
                self._lines.append(line.rstrip())
                found = _READY.search(line)
                if found and not self.endpoint:
                    self.endpoint = found[1]
                    self._spoke.set()
        self._spoke.set()

    def _why(self) -> str:
        assert self._process is not None  # noqa: S101  entered before
        if self._reader.is_alive():
            what = f"did not serve within {_START_LIMIT_S:.0f} s"
        else:
            what = f"ended at its start with exit code {self._process.wait(_STOP_LIMIT_S)}"
        said = "\n".join(self._lines)
        return f"the cloud service {what}; its output:\n{said}" if said else f"the cloud service {what} without output"

    def _end(self) -> None:
        assert self._process is not None  # noqa: S101  entered before
        self._process.terminate()
        try:
            self._process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_STOP_LIMIT_S)


T = TypeVar("T")


@dataclass(frozen=True)
class Length:
    """How much to send: pictures of each kind per run; requests and their rate through the outage; cards in the
    video.
    """

    digits: int
    pages: int
    outage: int
    kill_after: int
    rate_hz: float
    cards: int


FULL = Length(digits=594, pages=40, outage=300, kill_after=100, rate_hz=100.0, cards=24)
QUICK = Length(digits=200, pages=14, outage=60, kill_after=20, rate_hz=100.0, cards=6)


@dataclass(frozen=True)
class Example:
    """A digit that the device reads wrongly and the cloud rightly."""

    label: int
    read_as: int


@dataclass(frozen=True)
class DemoReport:
    """The result. `runs` holds edge_only, cloud_only and hybrid; `has_plot` is False without matplotlib, and `video`
    None without PyAV.
    """

    runs: Mapping[str, Summary]
    outage: OutageSummary
    video: VideoSummary | None
    endpoint: str
    example: Example | None
    has_plot: bool


def demonstrate(place: DemoFolder, engine: str, runtime: str, length: Length, progress: Progress) -> DemoReport:
    """Run everything and write all but the report to `place`. Raises `UpwellError`."""
    place.write_models()
    with _logging_to(place.log(names.AGENT_LOG)):
        runs, outage, endpoint = _record(place, engine, runtime, length, progress)
        seen = _show_video(place, engine, runtime, length.cards, progress) if find_spec("av") else None
    settings = load_yaml(place.file(names.POLICY), Policy).settings(DIGITS, None)
    summaries = {name: summarize(one) for name, one in runs.items()}
    edge, cloud = runs["edge_only"], runs["cloud_only"]
    example = _write_pictures(place, edge.outcomes, runs["hybrid"].outcomes, settings)
    has_plot = find_spec("matplotlib") is not None
    if has_plot:
        from upwell.tools.demo.demo_plot import draw

        progress.add_task("drawing", total=None)
        every = sweep(edge.outcomes, cloud.outcomes, settings)
        singles = sweep(edge.of(DIGITS), cloud.of(DIGITS), settings)
        place.write(names.PLOT, draw(summaries, every, singles, outage, settings))
    return DemoReport(summaries, summarize_outage(outage, settings.deadline_s), seen, endpoint, example, has_plot)


def _record(
    place: DemoFolder, engine: str, runtime: str, length: Length, progress: Progress
) -> tuple[dict[str, DemoRun], Outage, str]:
    """The runs by name, the outage, and the address of the cloud."""
    cases = demo_cases(length.digits, length.pages)
    task = progress.add_task("starting the cloud service", total=None)
    with CloudProcess(place.file("cloud"), engine, place.log(names.CLOUD_LOG)) as cloud:
        progress.remove_task(task)
        place.write_settings(runtime, cloud.endpoint)
        runs = {}
        for name, config in (("edge_only", names.EDGE_ONLY), ("cloud_only", names.CLOUD_ONLY)):
            with _interrupted_between() as until, embedded_agent(place.file(config)) as agent:
                runs[name] = run(agent, until(progress.track(cases, description=name.replace("_", " "))))
        with _interrupted_between() as until, embedded_agent(place.file(names.AGENT)) as agent:
            runs["hybrid"] = run(agent, until(progress.track(cases, description="hybrid")))
            outage = run_through_outage(
                agent,
                until(progress.track(cases[: length.outage], description="outage")),
                cloud.kill,
                kill_after=length.kill_after,
                rate_hz=length.rate_hz,
            )
        return runs, outage, cloud.endpoint


def _show_video(place: DemoFolder, engine: str, runtime: str, cards: int, progress: Progress) -> VideoSummary:
    """The second act, with its own cloud service."""
    from upwell.tools.demo.video_run import frames_of, run_video, shown_cards, write_video

    shown = shown_cards(cards)
    frames = frames_of(shown)
    with CloudProcess(place.file("cloud"), engine, place.log(names.VIDEO_CLOUD_LOG)) as cloud:
        place.write_pipeline(runtime, cloud.endpoint)
        drawn = progress.track(video(shown), total=frames, description="drawing a video")
        write_video(place.log(names.CARDS_VIDEO), drawn)
        place.log(names.EVENTS)
        with _interrupted_between() as until:
            return run_video(
                place,
                shown,
                cloud.kill,
                lambda answered: until(progress.track(answered, total=frames, description="video")),
            )


def _write_pictures(
    place: DemoFolder, edge: Sequence[DemoOutcome], hybrid: Sequence[DemoOutcome], settings: Settings
) -> Example | None:
    """Write three pictures to try out: an easy digit, one that only the cloud reads, and a page."""
    singles = [index for index, one in enumerate(edge) if one.case.model == DIGITS]
    saved = [
        index
        for index in singles
        if hybrid[index].from_cloud and hybrid[index].correct.all() and not edge[index].correct.any()
    ]
    ranks = {index: certainty(edge[index], settings) for index in singles}
    easy, hard = edge[max(singles, key=ranks.__getitem__)], edge[min(saved or singles, key=ranks.__getitem__)]
    place.write(names.EASY, easy.case.png)
    place.write(names.HARD, hard.case.png)
    place.write(names.PAGE, next(one.case.png for one in edge if one.case.model == PAGES))
    if not saved or hard.answer is None:
        return None
    return Example(int(hard.case.labels[0]), int(np.argmax(hard.answer.outputs["scores"])))


@contextmanager
def _interrupted_between() -> Iterator[Callable[[Iterable[T]], Iterator[T]]]:
    """Let SIGINT and SIGTERM end the iteration over the yielded cases or frames; they take effect after the block.

    Raised in the middle of a request, they could leave gRPC waiting for ever when the agent is closed.
    """
    came: list[int] = []
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in former:
        signal.signal(number, lambda number, _: came.append(number))

    def until(cases: Iterable[T]) -> Iterator[T]:
        for one in cases:
            if came:
                return
            yield one

    try:
        yield until
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Send the agent's log to a file, so that the report stays readable."""
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

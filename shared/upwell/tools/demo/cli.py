"""`upwell demo`: runs cloud service and agent on this machine and reports the result."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import TaskProgressColumn, TimeElapsedColumn

from upwell.shared.errors import ConfigError
from upwell.tools.demo.demo_requests import outage_table, runs_table, video_table
from upwell.tools.demo.demonstration import FULL, QUICK, DemoReport, demonstrate
from upwell.tools.demo.output_folder import (
    AGENT,
    CARDS_AGENT,
    HARD,
    LISTEN,
    PIPELINES,
    PLOT,
    POLICY,
    REPORT,
    DemoFolder,
)
from upwell.tools.terminal import AsJson, print_error, progress

_CLOUD_PACKAGES = {"grpc_health": "cloud", "grpc_reflection": "cloud"}
_ENGINE_PACKAGES = {"onnx": {"onnxruntime": "cloud"}, "torch": {"torch": "torch", "safetensors": "torch"}}


def demo(
    engine: Annotated[Literal["onnx", "torch"], typer.Option(help="The engine of the cloud's models.")] = "onnx",
    runtime: Annotated[Literal["onnx", "tflite"], typer.Option(help="The runtime of the device's models.")] = "onnx",
    out: Annotated[Path, typer.Option(help="Folder for all files written.")] = Path("demo-out"),
    as_json: AsJson = False,
    quick: Annotated[bool, typer.Option("--quick", help="Use only a third of the requests.")] = False,
) -> None:
    """Run cloud service and agent on this machine, on real handwritten digits, then without the cloud.

    Reports accuracy, latency, the share sent to the cloud and the reasons, for the device alone, the cloud alone and
    both together.
    """
    _require(engine)
    place = DemoFolder(out)
    with _ending_on_sigterm(), progress(TaskProgressColumn(), TimeElapsedColumn()) as bar:
        report = demonstrate(place, engine, runtime, QUICK if quick else FULL, bar)
    text = _as_json(report, [*place.files, str(place.file(REPORT))])
    place.write(REPORT, f"{text}\n".encode())
    if not report.has_plot:
        print_error("no plot: matplotlib is not installed: pip install 'upwell[plot]'")
    if report.video is None:
        print_error("no video: PyAV is not installed: pip install 'upwell[pipelines]'")
    if as_json:
        typer.echo(text)
    else:
        _tell(report, place, engine)


def _as_json(report: DemoReport, files: list[str]) -> str:
    document: dict[str, Any] = {name: asdict(run) for name, run in report.runs.items()}
    video = None if report.video is None else asdict(report.video)
    return json.dumps({**document, "outage": asdict(report.outage), "video": video, "files": files}, indent=2)


def _tell(report: DemoReport, place: DemoFolder, engine: str) -> None:
    console = Console(highlight=False)
    video = [] if report.video is None else [video_table(report.video)]
    for part in (runs_table(report.runs), outage_table(report.outage), *video):
        console.print()
        console.print(part)
    # No wrapping from here on: these are lines to copy.
    console.print("\n" + _closing(report, place, engine), markup=False, soft_wrap=True)


def _closing(report: DemoReport, place: DemoFolder, engine: str) -> str:
    def file(name: str) -> str:
        return shlex.quote(str(place.file(name)))

    picture = f"{PLOT}, " if report.has_plot else ""
    torch = " --engine torch" if engine == "torch" else ""
    hard = f"   # {report.example.label}, alone read as {report.example.read_as}" if report.example else ""
    pipelines, agent = file(PIPELINES), file(CARDS_AGENT)
    video = "" if report.video is None else f"  upwell run {pipelines} -c {agent}   # the video again\n"
    return f"""\
Everything is in {place.path}: {picture}{REPORT}, {AGENT}, {POLICY}, models, pictures, logs.
To continue, run each in its own terminal:
  upwell serve --models {file("cloud")} --listen {report.endpoint}{torch}
  upwell agent -c {file(AGENT)}
  upwell infer digits {file(HARD)} --at {LISTEN}{hard}
{video}Your own model: start with `upwell model init MODEL`; docs/quickstart.md goes on."""


def _require(engine: str) -> None:
    """Raise `ConfigError`, which names the extra, if the service could not run at all."""
    for package, extra in (_CLOUD_PACKAGES | _ENGINE_PACKAGES[engine]).items():
        if find_spec(package) is None:
            raise ConfigError.at(
                None,
                f"the demo's cloud service needs {package} for engine {engine}: pip install 'upwell[{extra}]'",
            )


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """Make SIGTERM leave the block like Ctrl-C, so that the service ends with it."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    former: Any = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)

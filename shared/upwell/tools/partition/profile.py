"""`upwell partition profile`: what heads of a model take on the device, or its tails at the service."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from upwell.shared.errors import ConfigError
from upwell.shared.files import write_named
from upwell.shared.partition.measuring import TierOptions
from upwell.shared.partition.profile import Point, Profile
from upwell.shared.units import parse_seconds
from upwell.tools.partition.profile_inputs import read_given
from upwell.tools.partition.profiling import ProfileOutcome, Profiler, Wishes
from upwell.tools.partition.tiers import open_tier

_FORMATS = {".onnx": "onnx", ".tflite": "tflite"}
_MOST_ROWS = 65536
_TIER = "edge: heads in the agent's runtimes, taken on the device; cloud: tails in the service's engine, taken there."
_POINTS = "How many cuts to measure, both ends among them; `all`: every legal one of the order."
_BUDGET = "How long measuring may take; past it every cut still gets 3 runs."
_UNSTEADY = 1.5
"""A machine that has nothing else to do stays below this, from the 10th to the 90th percentile of a cut."""
_STRETCH = "A simulated device: edge times of this machine multiplied by X. The file and every output say so."
_INPUTS = "An .npz with arrays named as the model's inputs; without it they are random."


def profile(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="An ONNX or TFLite file.", exists=True, dir_okay=False)
    ],
    tier: Annotated[Literal["edge", "cloud"], typer.Option(help=_TIER)] = "edge",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where it goes; default MODEL.TIER.json beside MODEL.")
    ] = None,
    points: Annotated[str, typer.Option(metavar="N|all", help=_POINTS)] = "12",
    runs: Annotated[int, typer.Option(min=3, max=100_000, help="Timed runs of each cut.")] = 30,
    rows: Annotated[int, typer.Option(min=1, max=_MOST_ROWS, help="Rows of an open batch.")] = 1,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Threads of a run; default as the tier runs it.")
    ] = None,
    accelerator: Annotated[
        str, typer.Option(metavar="NAME", help="`provider` as in agent.yaml: qnn, openvino, litert_npu, …")
    ] = "",
    library: Annotated[
        Path | None, typer.Option(metavar="LIB", help="The provider's plugin library, or the TFLite delegate.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="An option of the accelerator; may be repeated.")
    ] = None,
    stretch: Annotated[float, typer.Option(metavar="X", help=_STRETCH)] = 1.0,
    inputs: Annotated[Path | None, typer.Option(metavar="FILE", help=_INPUTS)] = None,
    budget: Annotated[str, typer.Option(metavar="TIME", help=_BUDGET)] = "2m",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Measure MODEL on one side: whole heads (or tails) at the cuts that are worth it, not sums of single operators.

    Everything is warm, repeated and interleaved. What noise put in the wrong order is corrected, and shown. `upwell
    partition plan` takes a profile of each side.
    """
    target = out if out is not None else model.with_name(f"{model.stem}.{tier}.json")
    _check_target(target)
    _check_stretch(stretch, tier)
    if library is not None and not accelerator:
        raise typer.BadParameter("--library: say with --accelerator what it is for")
    wishes = Wishes(tier, _points(points), runs, _seconds(budget), rows, stretch)
    options = TierOptions(threads, rows, accelerator, library, _pairs(option or ()))
    given = {} if inputs is None else read_given(inputs)
    measures, measured_on = open_tier(tier, _format(model), options)
    with _bar() as bar:
        profiler = Profiler(model, measures, wishes, given)
        outcome = profiler.profile(bar(profiler.steps))
    write_named(target, (outcome.profile.model_dump_json(indent=1) + "\n").encode(), "--out")
    if as_json:
        typer.echo(json.dumps(document(outcome, target), allow_nan=False))
    else:
        _show(Console(highlight=False, soft_wrap=True), outcome, target, measured_on)


def document(outcome: ProfileOutcome, target: Path) -> dict[str, Any]:
    """What was measured, as JSON: the profile as it was written, what cutting costs, and what was left out."""
    cutting = [
        {
            "nodes": one.nodes,
            "head_s": one.head_s,
            "tail_s": one.tail_s,
            "whole_s": one.whole_s,
            "overhead": one.overhead,
        }
        for one in outcome.cutting
    ]
    return {
        "written": str(target),
        "profile": outcome.profile.model_dump(mode="json"),
        "p90_over_p10": _unsteadiness(outcome.profile),
        "cutting": cutting,
        "left_out": [{"nodes": nodes, "reason": reason} for nodes, reason in outcome.left_out.items()],
    }


def _check_target(target: Path) -> None:
    """Minutes of measuring should not end in a folder that is not there."""
    if target.is_dir():
        raise ConfigError.at(target, "this is a directory; --out names a file", "--out")
    if not target.absolute().parent.is_dir():
        raise ConfigError.at(target, "its folder does not exist", "--out")


def _check_stretch(stretch: float, tier: str) -> None:
    if not 1 <= stretch <= 10_000:
        raise typer.BadParameter(f"--stretch: expected from 1 to 10000, got {stretch:g}")
    if stretch != 1 and tier != "edge":
        raise typer.BadParameter("--stretch: only the device can be simulated, with --tier edge")


def _points(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal() or not 2 <= int(text) <= 100_000:
        raise typer.BadParameter(f"--points: expected 2 or more, or all, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise typer.BadParameter(f"--budget: {error}") from None


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    """`["a=1"]` -> `{"a": "1"}`; a value may hold further equals signs."""
    parts = [text.partition("=") for text in texts]
    for text, (key, equals, _) in zip(texts, parts, strict=True):
        if not key or not equals:
            raise typer.BadParameter(f"--option: expected KEY=VALUE, got {text!r}")
    return {key: value for key, _, value in parts}


def _format(model: Path) -> str:
    found = _FORMATS.get(model.suffix.lower())
    if found is None:
        raise ConfigError.at(model, f"suffix {model.suffix!r} is not known; expected .onnx or .tflite")
    return found


@contextmanager
def _bar() -> Iterator[Callable[[int], Callable[[], None]]]:
    """Gives a function that takes the number of steps and gives what is called after each; silent if nobody looks."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("measuring", total=None)

        def started(steps: int) -> Callable[[], None]:
            progress.update(task, total=steps)
            return lambda: progress.advance(task)

        yield started


def _show(console: Console, outcome: ProfileOutcome, target: Path, measured_on: str) -> None:
    found = outcome.profile
    what = "heads" if found.tier == "edge" else "tails"
    on = found.runtime.accelerator or f"CPU, {_count(found.runtime.threads, 'thread')}"
    rows = "" if found.model.rows == 1 else f", {found.model.rows} rows"
    console.print(Text(f"{found.model.name}: {what} on {found.machine.name} ({found.runtime.version}, {on}{rows})"))
    if found.machine.simulated:
        console.print(Text(f"simulated device: {found.machine.simulated}"))
    if measured_on != found.tier:
        console.print(f"measured in the {measured_on}'s runtimes: the {found.tier} runs no such models itself")
    console.print(_table(found))
    for one in outcome.cutting:
        after = found.nodes[one.nodes - 1].name
        halves = f"{_ms(one.head_s)} + {_ms(one.tail_s)} ms, the whole {_ms(one.whole_s)} ms"
        console.print(Text(f"cut after {after}, both halves on this machine: {halves} ({one.overhead:+.1%})"))
    if _unsteadiness(found) > _UNSTEADY:
        console.print(f"not steady: p90 is {_unsteadiness(found):.1f} times p10; measure while nothing else runs")
    for nodes, reason in outcome.left_out.items():
        console.print(Text(f"left out, after {found.nodes[nodes - 1].name}: {reason}"))
    console.print(f"wrote {target}", markup=False)


def _unsteadiness(found: Profile) -> float:
    """p90 / p10 of the cut in the middle."""
    measured = [point.measured for point in found.points]
    return statistics.median(one.p90_s / one.p10_s for one in measured if one.p10_s)


def _table(found: Profile) -> Table:
    columns = [Column("nodes", justify="right"), Column("cut after", overflow="fold")]
    columns += [Column(name, justify="right") for name in ("crosses", "median ms", "p10–p90", "corrected ms")]
    placed = any(point.placement for point in found.points)
    table = Table(*columns, *([Column("on the accelerator")] if placed else []), box=None, pad_edge=False)
    for point in found.points:
        cells = [*_cells(found, point), *([point.placement] if placed else [])]
        table.add_row(*map(Text, cells))
    return table


def _cells(found: Profile, point: Point) -> list[str]:
    nodes, spread = point.nodes, point.measured
    after = found.nodes[nodes - 1].name if nodes else "(all in the cloud)"
    if nodes == len(found.nodes):
        after = "(all on the edge)"
    sizes = [found.tensors[name].bytes for name in point.tensors]
    known = sum(size for size in sizes if size is not None)
    crosses = "unknown" if None in sizes else f"{known:,} B" + (f" in {len(sizes)}" if len(sizes) > 1 else "")
    is_moved = abs(point.corrected_s - spread.median_s) > 1e-9 * spread.median_s
    corrected = _ms(point.corrected_s) + (" *" if is_moved else "")
    times = [_ms(spread.median_s), f"{_ms(spread.p10_s)}–{_ms(spread.p90_s)}", corrected]
    return [str(nodes), after, crosses if sizes else "", *times]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}" if seconds < 0.1 else f"{seconds * 1e3:.1f}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("s" if number != 1 else "")

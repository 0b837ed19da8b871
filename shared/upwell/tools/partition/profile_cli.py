"""`upwell partition profile`: measures heads of a model on the device, or its tails at the service."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from upwell.shared.errors import ConfigError
from upwell.shared.files import write_named
from upwell.shared.partition.graph_contraction import contract
from upwell.shared.partition.read_graph import read_graph
from upwell.shared.partition.tier_profile import Point, Profile
from upwell.shared.units import count_of, parse_seconds
from upwell.tools.partition.part_bench import TierOptions, open_tier
from upwell.tools.partition.profiler import ProfileOutcome, Profiler, Wishes
from upwell.tools.request_inputs import read_given
from upwell.tools.terminal import AsJson, key_values, parsed, progress, stdout_console

_MOST_ROWS = 65536
_TIER = "edge: heads in the agent's runtimes, taken on the device; cloud: tails in the service's engine, taken there."
_POINTS = "Number of cuts to measure, including both ends; `all`: every legal cut."
_BUDGET = "Time limit; after it, every cut still gets 3 runs."
_UNSTEADY = 1.5
"""Maximum ratio of the 90th to the 10th percentile of a cut on an idle machine."""
_STRETCH = "Simulate a device: multiply edge times of this machine by X. The file and every output say so."
_INPUTS = "An .npz with arrays named as the model's inputs; without it they are random."


def profile(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="An ONNX or TFLite file, or a .pt2 of torch.export.", exists=True, dir_okay=False
        ),
    ],
    tier: Annotated[Literal["edge", "cloud"], typer.Option(help=_TIER)] = "edge",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file to write; default MODEL.TIER.json beside MODEL.")
    ] = None,
    points: Annotated[str, typer.Option(metavar="N|all", help=_POINTS)] = "12",
    runs: Annotated[int, typer.Option(min=3, max=100_000, help="Timed runs of each cut.")] = 30,
    rows: Annotated[int, typer.Option(min=1, max=_MOST_ROWS, help="Rows of an open batch.")] = 1,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Threads of a run. Default: as the tier runs it.")
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
    as_json: AsJson = False,
) -> None:
    """Measure MODEL on one side: whole heads (or tails) at useful cuts, not sums of single operators.

    All runs are warm, repeated and interleaved. Times that noise put in the wrong order are corrected, and marked.
    `upwell partition plan` takes a profile of each side.
    """
    target = out if out is not None else model.with_name(f"{model.stem}.{tier}.json")
    _check_target(target)
    _check_stretch(stretch, tier)
    if library is not None and not accelerator:
        raise ConfigError.at(None, "it needs --accelerator", "--library")
    wishes = Wishes(tier, _points(points), runs, parsed("--budget", budget, parse_seconds), rows, stretch)
    options = TierOptions(threads, rows, accelerator, library, key_values("--option", option))
    given = {} if inputs is None else read_given(inputs)
    graph = contract(read_graph(model))
    measures, measured_on = open_tier(tier, graph.format, options)
    with progress(TimeRemainingColumn()) as bar:
        task = bar.add_task("measuring", total=None)
        profiler = Profiler(model, graph, measures, wishes, given)
        bar.update(task, total=profiler.steps)
        outcome = profiler.profile(lambda: bar.advance(task))
    write_named(target, (outcome.profile.model_dump_json(indent=1) + "\n").encode(), "--out")
    if as_json:
        typer.echo(json.dumps(document(outcome, target), allow_nan=False))
    else:
        _show(stdout_console(), outcome, target, measured_on)


def document(outcome: ProfileOutcome, target: Path) -> dict[str, Any]:
    """The measurements as JSON: the profile as written, the cost of cutting, and what was left out."""
    return {
        "written": str(target),
        "profile": outcome.profile.model_dump(mode="json"),
        "p90_over_p10": _unsteadiness(outcome.profile),
        "cutting": [{**asdict(one), "overhead": one.overhead} for one in outcome.cutting],
        "left_out": [{"nodes": nodes, "reason": reason} for nodes, reason in outcome.left_out.items()],
    }


def _check_target(target: Path) -> None:
    """Minutes of measuring should not end in a missing folder."""
    if target.is_dir():
        raise ConfigError.at(target, "this is a folder; --out must name a file", "--out")
    if not target.absolute().parent.is_dir():
        raise ConfigError.at(target, "its folder does not exist", "--out")


def _check_stretch(stretch: float, tier: str) -> None:
    if not 1 <= stretch <= 10_000:
        raise ConfigError.at(None, f"expected from 1 to 10000, got {stretch:g}", "--stretch")
    if stretch != 1 and tier != "edge":
        raise ConfigError.at(None, "only the device can be simulated, with --tier edge", "--stretch")


def _points(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal() or not 2 <= int(text) <= 100_000:
        raise ConfigError.at(None, f"expected 2 or more, or all, got {text!r}", "--points")
    return int(text)


def _show(console: Console, outcome: ProfileOutcome, target: Path, measured_on: str) -> None:
    found = outcome.profile
    what = "heads" if found.tier == "edge" else "tails"
    on = found.runtime.accelerator or f"CPU, {count_of(found.runtime.threads, 'thread')}"
    rows = "" if found.model.rows == 1 else f", {found.model.rows} rows"
    console.print(Text(f"{found.model.name}: {what} on {found.machine.name} ({found.runtime.version}, {on}{rows})"))
    if found.machine.simulated:
        console.print(Text(f"simulated device: {found.machine.simulated}"))
    if measured_on != found.tier:
        console.print(f"measured in the runtimes of the {measured_on}: the {found.tier} cannot run such models itself")
    console.print(_table(found))
    for one in outcome.cutting:
        after = found.nodes[one.nodes - 1].name
        halves = f"{_ms(one.head_s)} + {_ms(one.tail_s)} ms, the whole {_ms(one.whole_s)} ms"
        console.print(Text(f"cut after {after}, both halves on this machine: {halves} ({one.overhead:+.1%})"))
    if _unsteadiness(found) > _UNSTEADY:
        console.print(f"unsteady: p90 is {_unsteadiness(found):.1f} times p10; measure while nothing else is running")
    for nodes, reason in outcome.left_out.items():
        console.print(Text(f"skipped the cut after {found.nodes[nodes - 1].name}: {reason}"))
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

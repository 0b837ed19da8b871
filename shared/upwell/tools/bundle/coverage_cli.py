"""`upwell model coverage`: what of a model an accelerator takes, node by node."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from upwell.edge.runtimes import device_lock, probe
from upwell.edge.runtimes.coverage import Coverage, NodeCover
from upwell.edge.runtimes.coverage_of import coverage_of
from upwell.edge.runtimes.options import MAX_BATCH, AcceleratorOptions, RuntimeOptions
from upwell.edge.runtimes.placement import AcceleratorNotUsable
from upwell.shared.units import parse_share
from upwell.tools.quantize.quiet import quiet

EXIT_FAILED = 1
_RUNTIMES = ("onnx", "tflite")
_PACKAGES = ("ai_edge_litert", "tflite_runtime")
_MAX_LISTED = 50


def coverage(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="An ONNX or TFLite file.", exists=True, dir_okay=False)
    ],
    accelerator: Annotated[
        str, typer.Option(metavar="NAME", help="`provider` as in agent.yaml: qnn, openvino, litert_npu, …")
    ],
    library: Annotated[
        Path | None, typer.Option(metavar="LIB", help="The provider's plugin library, or the TFLite delegate.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="An option of it; may be repeated.")
    ] = None,
    runtime: Annotated[
        str | None, typer.Option(metavar="|".join(_RUNTIMES), help="The runtime; default by the file's suffix.")
    ] = None,
    package: Annotated[
        str | None, typer.Option(metavar="|".join(_PACKAGES), help="The TFLite package; default the first there.")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_BATCH, metavar="N", help="Fix an open batch of the model to N, as `batch` in agent.yaml."
        ),
    ] = None,
    at_least: Annotated[
        str, typer.Option(metavar="SHARE", help="Exit with 1 where less of the nodes is there, such as 90%.")
    ] = "0%",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Tell what of MODEL an accelerator takes: share of nodes and work, partitions, each node left on the CPU.

    The runtime's own word on where each node runs decides, not a list of supported operators. Work is an estimate:
    the multiplications of one run.
    """
    needed = _share(at_least)
    options = RuntimeOptions.model_validate(
        {
            "runtime": _one_of("--runtime", runtime, _RUNTIMES),
            "package": _one_of("--package", package, _PACKAGES),
            "batch": batch,
        }
    )
    wanted = AcceleratorOptions(provider=accelerator, library=library, options=_pairs(option or ()))
    try:
        with quiet(), _tried_out(model, options, wanted):  # vendors' libraries print, to standard output too
            found = coverage_of(model, options, wanted)
    except AcceleratorNotUsable as reason:
        _fail(f"{accelerator} cannot be used for {model}: {reason}")
    if as_json:
        typer.echo(json.dumps(document(model, found)))
    else:
        _show(Console(highlight=False, soft_wrap=not sys.stdout.isatty()), model, found)
    if not found.node_share >= needed:
        _fail(f"{_percent(found.node_share)} of the nodes are on {accelerator}, --at-least asks for {at_least}")


def document(model: Path, found: Coverage) -> dict[str, Any]:
    """The coverage as JSON can hold it: null where work is not known, `partition` null on the CPU."""
    return {
        "model": str(model),
        "accelerator": found.accelerator,
        "runtime": found.runtime,
        "source": found.source,
        "nodes": len(found.nodes),
        "nodes_on_accelerator": len(found.taken),
        "node_share": _finite(found.node_share),
        "work_share": _finite(found.work_share),
        "partitions": found.partitions,
        "per_node": [
            {"name": node.name, "operator": node.operator, "partition": node.partition, "work": _finite(node.work)}
            for node in found.nodes
        ],
    }


@contextmanager
def _tried_out(model: Path, options: RuntimeOptions, wanted: AcceleratorOptions) -> Iterator[None]:
    """Hold the device of a library that is named, once a process of its own has opened the model with it.

    Raises `AcceleratorNotUsable` where that crashed or hung, or somebody has the device open.
    """
    if wanted.library is None:
        yield
        return
    subject = probe.ProbeSubject(model, options, wanted, version="")
    try:
        lock = device_lock.try_out(subject.library, wanted.option_texts(), probe.TIMEOUT_S)
    except device_lock.DeviceBusy as error:
        raise AcceleratorNotUsable(str(error)) from None
    try:
        _run_apart(subject, lock)
        yield
    finally:
        lock.release()


def _run_apart(subject: probe.ProbeSubject, lock: device_lock.DeviceLock) -> None:
    """Raise where the library would take this process down or keep it for ever. A refusal is found out again here."""
    started_s = time.monotonic()
    try:
        probe.run_child(subject, probe.TIMEOUT_S, lock)
    except probe.ProbeCrashed:
        raise
    except AcceleratorNotUsable:
        if time.monotonic() - started_s >= probe.TIMEOUT_S:
            raise


def _share(text: str) -> float:
    try:
        return parse_share(text)
    except ValueError as error:
        raise typer.BadParameter(f"--at-least: {error}") from None


def _one_of(name: str, value: str | None, known: Sequence[str]) -> str | None:
    if value is not None and value not in known:
        raise typer.BadParameter(f"{name}: expected {' or '.join(known)}, got {value!r}")
    return value


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    """`["a=1"]` -> `{"a": "1"}`; a value may hold further equals signs."""
    parts = [text.partition("=") for text in texts]
    for text, (key, equals, _) in zip(texts, parts, strict=True):
        if not key or not equals:
            raise typer.BadParameter(f"--option: expected KEY=VALUE, got {text!r}")
    return {key: value for key, _, value in parts}


def _fail(text: str) -> NoReturn:
    Console(stderr=True, highlight=False, soft_wrap=True).print(text, markup=False)
    raise typer.Exit(EXIT_FAILED)


def _show(console: Console, model: Path, found: Coverage) -> None:
    console.print(Text(f"{model.name} on {found.accelerator}, {found.runtime}, as its {found.source} says"))
    console.print(f"  nodes       {len(found.taken)} of {len(found.nodes)} ({_percent(found.node_share)})")
    console.print(f"  work        {_percent(found.work_share)}, estimated")
    console.print(f"  partitions  {found.partitions}")
    if not found.left_on_cpu:
        return
    console.print()
    total = sum(node.work for node in found.nodes)
    columns = Column("left on the CPU", overflow="fold"), "operator", "work"
    table = Table(*columns, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for node in found.left_on_cpu[:_MAX_LISTED]:
        table.add_row(Text(node.name), Text(node.operator), _percent(_part(node, total)))
    console.print(table)
    more = len(found.left_on_cpu) - _MAX_LISTED
    if more > 0:
        console.print(f"and {more} more; --json lists them all")


def _part(node: NodeCover, total: float) -> float:
    return node.work / total if total > 0 else math.nan


def _percent(share: float) -> str:
    return f"{share:.1%}" if math.isfinite(share) else "unknown"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

"""`upwell model coverage`: which nodes of a model an accelerator runs."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from rich.table import Column, Table
from rich.text import Text

from upwell.edge.runtimes import device_lock, probe_process
from upwell.edge.runtimes.placement import AcceleratorNotUsable, Coverage, NodeCover
from upwell.edge.runtimes.runtime_loader import coverage_of
from upwell.edge.runtimes.runtime_options import MAX_BATCH, AcceleratorOptions, RuntimeOptions
from upwell.shared.errors import EXIT_FAILED, ConfigError
from upwell.tools.terminal import AsJson, finite, key_values, percent, print_error, quiet, share, stdout_console

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
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An option of the provider or delegate; may be repeated."),
    ] = None,
    runtime: Annotated[
        Literal["onnx", "tflite"] | None, typer.Option(help="The runtime. Default: by the file's suffix.")
    ] = None,
    package: Annotated[
        Literal["ai_edge_litert", "tflite_runtime"] | None,
        typer.Option(help="The TFLite package. Default: the first installed one."),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_BATCH, metavar="N", help="Fix the model's open batch to N, like `batch` in agent.yaml."
        ),
    ] = None,
    at_least: Annotated[
        str,
        typer.Option(
            metavar="SHARE", help="Exit with 1 if a smaller share of the nodes is on the accelerator, such as 90%."
        ),
    ] = "0%",
    as_json: AsJson = False,
) -> None:
    """Show what an accelerator runs of MODEL: share of nodes and work, partitions, and each node left on the CPU.

    The runtime's own node assignment decides, not a list of supported operators. Work is an estimate: the
    multiplications of one run.
    """
    needed = share("--at-least", at_least)
    if runtime == "onnx" and package is not None:
        raise ConfigError.at(None, "only for --runtime tflite", "--package")
    if not accelerator:
        raise ConfigError.at(None, "expected the name of a provider, such as qnn or openvino", "--accelerator")
    options = RuntimeOptions(runtime=runtime, package=package, batch=batch)
    wanted = AcceleratorOptions(provider=accelerator, library=library, options=key_values("--option", option))
    try:
        with quiet(), _tried_out(model, options, wanted):  # vendors' libraries print, even to standard output
            found = coverage_of(model, options, wanted)
    except AcceleratorNotUsable as reason:
        _fail(f"{accelerator} cannot be used for {model}: {reason}")
    if as_json:
        typer.echo(json.dumps(document(model, found)))
    else:
        _show(model, found)
    if not found.node_share >= needed:
        _fail(f"{percent(found.node_share)} of the nodes are on {accelerator}; --at-least requires {at_least}")


def document(model: Path, found: Coverage) -> dict[str, Any]:
    """The coverage as JSON: null if the work is unknown, `partition` null on the CPU."""
    return {
        "model": str(model),
        "accelerator": found.accelerator,
        "runtime": found.runtime,
        "source": found.source,
        "nodes": len(found.nodes),
        "nodes_on_accelerator": len(found.taken),
        "node_share": finite(found.node_share),
        "work_share": finite(found.work_share),
        "partitions": found.partitions,
        "per_node": [
            {"name": node.name, "operator": node.operator, "partition": node.partition, "work": finite(node.work)}
            for node in found.nodes
        ],
    }


@contextmanager
def _tried_out(model: Path, options: RuntimeOptions, wanted: AcceleratorOptions) -> Iterator[None]:
    """Hold the device of the given library, after a separate process has opened the model with it.

    Raises `AcceleratorNotUsable` if that process crashed or hung, or if the device is in use.
    """
    if wanted.library is None:
        yield
        return
    subject = probe_process.ProbeSubject(model, options, wanted, version="")
    try:
        lock = device_lock.try_out(subject.library, wanted.option_texts(), probe_process.TIMEOUT_S)
    except device_lock.DeviceBusy as error:
        raise AcceleratorNotUsable(str(error)) from None
    try:
        _run_apart(subject, lock)
        yield
    finally:
        lock.release()


def _run_apart(subject: probe_process.ProbeSubject, lock: device_lock.DeviceLock) -> None:
    """Raise if the library would crash this process or hang it. A refusal is left to be found again here."""
    started_s = time.monotonic()
    try:
        probe_process.run_child(subject, probe_process.TIMEOUT_S, lock)
    except probe_process.ProbeCrashed:
        raise
    except AcceleratorNotUsable:
        if time.monotonic() - started_s >= probe_process.TIMEOUT_S:
            raise


def _fail(text: str) -> NoReturn:
    print_error(text)
    raise typer.Exit(EXIT_FAILED)


def _show(model: Path, found: Coverage) -> None:
    console = stdout_console()
    console.print(Text(f"{model.name} on {found.accelerator}, {found.runtime}, according to its {found.source}"))
    console.print(f"  nodes       {len(found.taken)} of {len(found.nodes)} ({percent(found.node_share)})")
    console.print(f"  work        {percent(found.work_share)}, estimated")
    console.print(f"  partitions  {found.partitions}")
    if not found.left_on_cpu:
        return
    console.print()
    total = sum(node.work for node in found.nodes)
    columns = Column("left on the CPU", overflow="fold"), "operator", "work"
    table = Table(*columns, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for node in found.left_on_cpu[:_MAX_LISTED]:
        table.add_row(Text(node.name), Text(node.operator), percent(_part(node, total)))
    console.print(table)
    more = len(found.left_on_cpu) - _MAX_LISTED
    if more > 0:
        console.print(f"and {more} more; --json lists them all")


def _part(node: NodeCover, total: float) -> float:
    return node.work / total if total > 0 else math.nan

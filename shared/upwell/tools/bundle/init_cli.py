"""`upwell model init`: a starting description of a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from upwell.edge.runtimes.base import Runtime
from upwell.edge.runtimes.load import load_runtime
from upwell.edge.runtimes.options import RuntimeOptions
from upwell.shared.errors import ConfigError
from upwell.shared.files import write_named
from upwell.shared.signature.init import starting_description
from upwell.shared.tensors import TensorSpec
from upwell.tools.terminal import AsJson, stdout_console


def init(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX or TFLite file.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to write it; default model.yaml beside MODEL.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a starting model.yaml for MODEL: its tensors, and guesses at what they mean to check."""
    target = out if out is not None else model.parent / "model.yaml"
    _refuse_existing(target, force)
    runtime = load_runtime(model, RuntimeOptions(threads=1))
    text = starting_description(runtime.inputs, runtime.outputs)
    quantization: dict[str, tuple[float, int]] = getattr(runtime, "quantization", {})  # TFLite models only
    runtime.close()
    write_named(target, text.encode())
    if as_json:
        typer.echo(json.dumps(_report(model, target, runtime, text, quantization)))
        return
    console = stdout_console()
    console.print(_table(runtime, quantization))
    console.print(f"wrote {target}; check in it:", markup=False)
    for line, comment in _checks(text):
        console.print(f"  line {line}: {comment}", markup=False)


def _refuse_existing(target: Path, force: bool) -> None:
    if target.is_dir():
        raise ConfigError.at(target, "this is a folder; --out names a file")
    if target.exists() and not force:
        raise ConfigError.at(target, "exists already; --force replaces it, --out writes another file")


def _checks(text: str) -> Sequence[tuple[int, str]]:
    """The comments of a starting description that ask for a check, each with the line that it is about."""
    lines = [line.strip() for line in text.splitlines()]
    return [(number + 1, line.lstrip("# ")) for number, line in enumerate(lines, 1) if number > 1 and line[:1] == "#"]


def _report(
    model: Path, target: Path, runtime: Runtime, text: str, quantization: dict[str, tuple[float, int]]
) -> dict[str, Any]:
    def described(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
        return [{**asdict(spec), "quantization": quantization.get(spec.name)} for spec in specs]

    return {
        "model": str(model),
        "runtime": runtime.version,
        "inputs": described(runtime.inputs),
        "outputs": described(runtime.outputs),
        "written": str(target),
        "check": [{"line": line, "comment": comment} for line, comment in _checks(text)],
    }


def _table(runtime: Runtime, quantization: dict[str, tuple[float, int]]) -> Table:
    table = Table("", "name", "datatype", "shape (-1 varies)")
    if quantization:
        table.add_column("scale, zero point")
    for kind, specs in (("input", runtime.inputs), ("output", runtime.outputs)):
        for spec in specs:
            scale = ", ".join(f"{number:g}" for number in quantization.get(spec.name, ()))
            cells = [spec.name, spec.datatype, str(list(spec.shape)), *([scale] if quantization else [])]
            table.add_row(kind, *map(Text, cells))
    return table

"""`upwell model quantize`: writes an int8 model, never over another file unless asked to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from upwell.shared.errors import ConfigError
from upwell.shared.files import write_named
from upwell.tools.quantize.model_quantization import check_model, quantize_model
from upwell.tools.quantize.quantize_report import show
from upwell.tools.quantize.quantizer import Interface, Method, QuantizeSettings, T, Target, Weights
from upwell.tools.terminal import AsJson, progress, quiet, stdout_console


def check_free(path: Path, model: Path, force: bool) -> None:
    """Raise `ConfigError` if a model cannot or must not be written to `path`, before any work is done."""
    if path.is_dir():
        raise ConfigError.at(path, "this is a folder; --out must name a file", "--out")
    if path.suffix.lower() != model.suffix.lower():
        raise ConfigError.at(path, f"the int8 model is also a {model.suffix} file; expected that suffix", "--out")
    if not path.parent.is_dir():
        raise ConfigError.at(path, f"there is no folder {path.parent}", "--out")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError.at(path, f"the folder {path.parent} cannot be written; --out names a file elsewhere", "--out")
    if not path.exists():
        return
    if model.exists() and path.samefile(model):
        raise ConfigError.at(path, "this is the float model itself; --out must name another file", "--out")
    if not force:
        raise ConfigError.at(
            path, "the file already exists; replace it with --force, or name another with --out", "--out"
        )


_DATA = (
    "A folder of pictures, or an .npz file with an array of N rows for each input of the model, and optional `labels`; "
    "or one .npy."
)
_WEIGHTS = "u8 is correct on every CPU and the default there; s8 overflows on x86 without VNNI, but NPUs need it."
_KEEP = "Keep this node float; may be repeated."


def quantize(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A float .onnx or .tflite file.", show_default=False)],
    data: Annotated[Path, typer.Option(metavar="FILE", help=_DATA)],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file to write. Default: MODEL with .int8 before its suffix."),
    ] = None,
    weights: Annotated[Weights | None, typer.Option(help=_WEIGHTS)] = None,
    target: Annotated[Target, typer.Option(help="The target that the model will run on.")] = "cpu",
    method: Annotated[Method, typer.Option(help="How ranges are chosen.")] = "minmax",
    interface: Annotated[Interface, typer.Option(help="Inputs and outputs of a TFLite model.")] = "float",
    keep_float: Annotated[list[str] | None, typer.Option("--keep-float", metavar="NODE", help=_KEEP)] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make an int8 model of MODEL, calibrated on your data, and measure the loss on held-out rows."""
    check_model(model)
    written_to = out if out is not None else model.with_name(f"{model.stem}.int8{model.suffix}")
    check_free(written_to, model, force)
    settings = QuantizeSettings(weights, target, method, interface)
    with quiet() as terminal:
        bar = _Bar(Console(file=terminal, highlight=False))
        made = quantize_model(model, data, written_to, settings, keep_float or (), bar)
    write_named(written_to, made.model, "--out")
    if as_json:
        typer.echo(json.dumps(made.report.document(), allow_nan=False))
    else:
        show(made.report, stdout_console())


class _Bar:
    """A `Track` that draws a bar for each part of the work; silent outside a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, items: Sequence[T], doing: str) -> Iterator[T]:
        with progress(console=self._console) as bar:
            yield from bar.track(items, description=doing)

"""`upwell model export` and `export-jax`: convert a torch module for devices or for engine jax."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from upwell.shared.errors import EXIT_FAILED, ConfigError, ExtraMissing
from upwell.shared.files import new_folder, parse_json, write_named
from upwell.tools.terminal import AsJson, plain, stdout_console

if TYPE_CHECKING:
    from upwell.tools.export.torch_to_jax import Program

_ROWS = (1, 3)

_CLASS = "The network's class, `package.module.Class`, with `inputs` and `outputs` as for engine torch."
_WEIGHTS = "The network's weights, a safetensors file."
_FILE = "The file to write; its suffix, .onnx or .tflite, chooses the format."
_OUT = "The version's folder to create, such as models/digits/1."
_ARGUMENTS = "Keyword arguments of the class, a JSON object."
_PLATFORM = "The platform: cpu, cuda, rocm or tpu; may be repeated. Default: all of them."
_AT_MOST = "The largest relative error of an output: max |exported - torch| / max |torch|."
_FAST = "Allow faster, less exact float32 products (bfloat16 on a TPU, TF32 on NVIDIA)."


def export(
    network: Annotated[str, typer.Argument(metavar="CLASS", help=_CLASS, show_default=False)],
    weights: Annotated[Path, typer.Argument(metavar="WEIGHTS", help=_WEIGHTS, show_default=False)],
    out: Annotated[Path, typer.Argument(metavar="OUT", help=_FILE, show_default=False)],
    arguments: Annotated[str, typer.Option(metavar="JSON", help=_ARGUMENTS)] = "{}",
    at_most: Annotated[float, typer.Option("--at-most", min=0, metavar="ERROR", help=_AT_MOST)] = 1e-4,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Export a torch network for devices: ONNX for any number of rows, or TFLite for one at a time.

    ONNX needs the extra `export`, TFLite the package litert-torch. The file's answers to random inputs are compared
    with torch's on the CPU; if they differ, nothing is written. `upwell model init` then describes it.
    """
    keywords = _keywords(arguments)
    if out.suffix not in (".onnx", ".tflite"):
        raise ConfigError.at(out, "expected a name that ends in .onnx or .tflite")
    if os.path.lexists(out) and not force:
        raise ConfigError.at(out, "already exists; replace it with --force")
    if not out.parent.is_dir():
        raise ConfigError.at(out, f"there is no folder {out.parent}")
    with ExtraMissing.on_import("export", "upwell model export needs PACKAGE"):
        from upwell.tools.export import torch_to_device
        from upwell.tools.export.torch_network import load_module

        exported = torch_to_device.TorchNetwork.of(load_module(network, weights, keywords))
        data = torch_to_device.exported(exported, out.suffix)
    with (
        ConfigError.on_os_error(out, "cannot be written"),
        tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder,
    ):
        draft = Path(folder) / out.name
        draft.write_bytes(data)
        worst = torch_to_device.largest_error(exported, draft, _ROWS)
    holds = worst <= at_most  # False for NaN
    if holds:
        write_named(out, data)
    report = _checked(worst, holds) | {"written": str(out) if holds else None, "bytes": len(data)}
    if as_json:
        typer.echo(json.dumps(report, allow_nan=False))
    else:
        _show_error(report, at_most)
        last = f"wrote {out}; upwell model init {out} describes it" if holds else "nothing is written"
        stdout_console().print(plain(last))
    if not holds:
        raise typer.Exit(EXIT_FAILED)


def _checked(worst: float, holds: bool) -> dict[str, Any]:
    found = worst if math.isfinite(worst) else None
    return {"holds": holds, "largest_relative_error": found, "rows_checked": _ROWS}


def _show_error(report: dict[str, Any], at_most: float) -> None:
    error = report["largest_relative_error"]
    found = "is not finite" if error is None else f"{error:.2g}"
    rows = " and ".join(map(str, report["rows_checked"]))
    stdout_console().print(f"largest relative error against torch, {rows} rows: {found} (at most {at_most:g})")


def export_jax(
    network: Annotated[str, typer.Argument(metavar="CLASS", help=_CLASS, show_default=False)],
    weights: Annotated[Path, typer.Argument(metavar="WEIGHTS", help=_WEIGHTS, show_default=False)],
    out: Annotated[Path, typer.Argument(metavar="OUT", help=_OUT, show_default=False)],
    arguments: Annotated[str, typer.Option(metavar="JSON", help=_ARGUMENTS)] = "{}",
    platform: Annotated[list[str] | None, typer.Option(help=_PLATFORM)] = None,
    fast_matmul: Annotated[bool, typer.Option("--fast-matmul", help=_FAST)] = False,
    at_most: Annotated[float, typer.Option("--at-most", min=0, metavar="ERROR", help=_AT_MOST)] = 1e-5,
    as_json: AsJson = False,
) -> None:
    """Export a torch network for engine jax: OUT/model.jax, a program for any batch size, and OUT/model.safetensors.

    Needs the extra `jax-export`, in an environment of its own. The program's answers to random inputs are compared
    with torch's on the CPU, and the answer to a row alone with that to the same row in a batch; if they differ,
    nothing is written.
    """
    keywords = _keywords(arguments)
    if os.path.lexists(out):
        raise ConfigError.at(out, "already exists; name a new folder, such as that of the next version")
    with ExtraMissing.on_import("jax-export", "upwell model export-jax needs PACKAGE"):
        from upwell.tools.export import torch_to_jax
        from upwell.tools.export.torch_network import load_module
    platforms = _platforms(platform, torch_to_jax.PLATFORMS)
    module = load_module(network, weights, keywords)
    program = torch_to_jax.exported(module, platforms, is_exact=not fast_matmul)
    worst = torch_to_jax.largest_error(program, module, _ROWS)
    holds = worst <= at_most  # False for NaN
    if holds:
        torch_to_jax.check_rows(program, at_most)
    if holds:
        _write(out, program)
    _show(_report(out, program, platforms, worst, holds), at_most, as_json)
    if not holds:
        raise typer.Exit(EXIT_FAILED)


def _keywords(text: str) -> dict[str, Any]:
    try:
        keywords = parse_json(text)
    except ValueError as error:
        raise ConfigError.at(None, f"not JSON: {error}", "--arguments") from None
    if not isinstance(keywords, dict):
        raise ConfigError.at(None, 'expected a JSON object, such as {"classes": 10}', "--arguments")
    return keywords


def _platforms(given: Sequence[str] | None, known: Sequence[str]) -> Sequence[str]:
    platforms = tuple(dict.fromkeys(given or known))
    unknown = [one for one in platforms if one not in known]
    if unknown:
        raise ConfigError.at(None, f"expected one of {', '.join(known)}, got {unknown[0]!r}", "--platform")
    if "cpu" not in platforms:
        raise ConfigError.at(None, "cpu must be included, since the answers are checked there", "--platform")
    return platforms


def _write(out: Path, program: Program) -> None:
    """Create the folder with both files, or nothing. Raises `ConfigError`."""
    from safetensors.numpy import save

    with new_folder(out) as draft:
        (draft / "model.jax").write_bytes(program.data)
        if program.weights:
            (draft / "model.safetensors").write_bytes(save(dict(program.weights)))


def _report(out: Path, program: Program, platforms: Sequence[str], worst: float, holds: bool) -> dict[str, Any]:
    return {
        **_checked(worst, holds),
        "written": str(out) if holds else None,
        "sha256": hashlib.sha256(program.data).hexdigest(),
        "program_bytes": len(program.data),
        "weights": {name: list(array.shape) for name, array in program.weights.items()},
        "platforms": list(platforms),
    }


def _show(report: dict[str, Any], at_most: float, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(report, allow_nan=False))
        return
    console = stdout_console()
    _show_error(report, at_most)
    if not report["holds"]:
        console.print("nothing is written")
        return
    count, size = len(report["weights"]), report["program_bytes"]
    console.print(f"wrote {report['written']}: a program of {size} bytes for {', '.join(report['platforms'])}, "
                  f"{count} weights", markup=False)  # fmt: skip
    console.print("the program can run code when loaded; to serve it, list it in cloud.yaml under serve.trusted:")
    console.print(report["sha256"])

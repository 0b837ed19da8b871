"""Fixing the batch of an ONNX model that was exported with an open one.

ONNX Runtime fixes a dimension by its name, wherever it occurs, and infers the shapes that follow from it. It has no way
to fix one that has no name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from upwell.edge.runtimes.inputs import unkept_batch
from upwell.edge.runtimes.onnx_graph import read_graph
from upwell.shared.errors import ConfigError
from upwell.shared.onnx_bytes import BadOnnxFile

_TOOL = "python -m onnxruntime.tools.make_dynamic_shape_fixed"


def names_to_fix(path: Path, batch: int) -> Sequence[str]:
    """The names of the open dimensions that the inputs of the model at `path` lead with.

    Raises `ConfigError` where one has no name or is also the name of another dimension, and where all are fixed and
    none to `batch`.
    """
    try:
        inputs = read_graph(path).inputs
    except BadOnnxFile as error:
        raise ConfigError.at(path, str(error)) from None
    opened = _open(inputs)
    for name, symbol in opened.items():
        if not symbol:
            how = f"fix it in the file ({_TOOL} --input_name {name} --input_shape …), or export it with a name"
            raise unkept_batch(path, batch, f"input {name!r} leads with an open dimension that has no name; {how}")
        if any(symbol in shape[1:] for shape in inputs.values()):
            raise unkept_batch(
                path, batch, f"{symbol!r}, with which input {name!r} leads, is the name of other dimensions too"
            )
    if not opened and batch not in [shape[0] for shape in inputs.values() if shape]:
        fixed = ", ".join(f"{name!r} {list(shape)}" for name, shape in inputs.items())
        raise unkept_batch(path, batch, f"the model leaves no batch open: it takes {fixed}")
    return sorted(set(opened.values()))


def hint(path: Path) -> str:
    """What to try where an accelerator does not take the whole model at `path` and its batch is open; else empty."""
    try:
        opened = _open(read_graph(path).inputs)
    except (BadOnnxFile, OSError):
        return ""
    if not opened:
        return ""
    return (
        f"; the batch of {', '.join(map(repr, opened))} is open, and many accelerators take fixed sizes only: "
        "write `batch: 1`"
    )


def _open(inputs: Mapping[str, tuple[int | str, ...]]) -> Mapping[str, str]:
    leading = {name: shape[0] for name, shape in inputs.items() if shape}
    return {name: size for name, size in leading.items() if isinstance(size, str)}

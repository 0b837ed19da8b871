"""What an exported JAX program takes and gives, read from the program itself.

Nothing of JAX is imported: a program carries its names, dtypes and shapes as plain values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from upwell.shared.errors import InvalidRequest, ModelFailed
from upwell.shared.tensors import TensorSpec, oip_datatype


@dataclass(frozen=True)
class Signature:
    """The tensors of a program `(weights, inputs) -> outputs`; -1 in a shape is the rows, all else is fixed."""

    weights: tuple[TensorSpec, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    by_rows: bool
    """Whether there are rows; if so, every input and output has them."""

    @classmethod
    def of(cls, program: Any) -> Signature:
        """Read it from a `jax.export.Exported`. Raises `ModelFailed` for a program that cannot be served, and why."""
        if program.nr_devices != 1:
            raise ModelFailed(f"it was exported for {program.nr_devices} devices at once; expected 1")
        arguments = program.in_tree.unflatten(program.in_avals)
        if len(arguments) != 2 or arguments[1] or len(arguments[0]) != 2:
            raise ModelFailed("its function must take (weights, inputs), two dictionaries, and nothing else")
        weights, inputs = (_named(what, tree) for what, tree in zip(("weights", "inputs"), arguments[0], strict=True))
        outputs = _named("outputs", program.out_tree.unflatten(program.out_avals))
        if not inputs or not outputs:
            raise ModelFailed("its function must have at least one input and one output")
        rows = _symbol(inputs)
        signature = cls(
            tuple(_spec(f"weight {name!r}", name, aval, None) for name, aval in weights.items()),
            tuple(_spec(f"input {name!r}", name, aval, rows) for name, aval in inputs.items()),
            tuple(_spec(f"output {name!r}", name, aval, rows) for name, aval in outputs.items()),
            rows is not None,
        )
        for spec in (*signature.inputs, *signature.outputs) if rows is not None else ():
            if spec.shape[:1] != (-1,):  # batches are filled up with zeros, which only a result by rows leaves out
                raise ModelFailed(f"{spec.name!r} has shape {list(spec.shape)}; here all inputs and outputs need rows")
        return signature


def _named(what: str, tree: object) -> Mapping[str, Any]:
    if isinstance(tree, dict) and all(hasattr(aval, "shape") for aval in tree.values()):
        return tree
    raise ModelFailed(f"the {what} of its function must be a dictionary from names to arrays")


def _symbol(inputs: Mapping[str, Any]) -> str | None:
    """The name of the symbolic first dimension that is the rows, if there is one."""
    symbols = {str(aval.shape[0]) for aval in inputs.values() if aval.shape and not isinstance(aval.shape[0], int)}
    if len(symbols) > 1 or not all(symbol.isidentifier() for symbol in symbols):
        raise ModelFailed(f"its inputs have rows {', '.join(sorted(symbols))}; all must have the same, such as 'rows'")
    return next(iter(symbols), None)


def _spec(what: str, name: str, aval: Any, rows: str | None) -> TensorSpec:
    sizes = [
        -1 if place == 0 and str(size) == rows else size if isinstance(size, int) else None
        for place, size in enumerate(aval.shape)
    ]
    shape = tuple(size for size in sizes if size is not None)
    if len(shape) < len(sizes):
        raise ModelFailed(
            f"{what} has shape [{', '.join(map(str, aval.shape))}]; only the rows, its first size, may vary, "
            "since each shape is compiled anew"
        )
    try:
        return TensorSpec(name, oip_datatype(np.dtype(aval.dtype)), shape)
    except (InvalidRequest, TypeError):
        raise ModelFailed(f"{what} is {aval.dtype}, which no request can carry") from None

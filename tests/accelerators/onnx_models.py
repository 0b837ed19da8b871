"""ONNX models of which a provider takes some nodes and not others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from tests.unit.models_for_tests import save, tensor
from upwell.tools.demo.digit_data import ASSETS

ROWS, WIDTH = 4, 8
_TAKEN = ("Sigmoid", "Tanh", "MatMul")


def fixed_digits(folder: Path) -> Path:
    """The demo's int8 digit reader for one picture: NPUs take fixed sizes alone."""
    model = onnx.load(ASSETS / "edge" / "digits" / "model.onnx")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    del model.graph.value_info[:]
    path = folder / "digits.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def chain(folder: Path, operators: Sequence[str], *, with_names: bool = True) -> Path:
    """The operators one after the other on FP32 [4, 8]; MatMul and Add have a constant as their second input."""
    weights = np.linalg.qr(np.random.default_rng(0).standard_normal((WIDTH, WIDTH)))[0].astype(np.float32)
    names = ["x", *(f"h{index}" for index in range(1, len(operators))), "y"]
    constants = {"MatMul": weights, "Add": weights[:1]}
    nodes = [
        helper.make_node(
            operator,
            [before, operator] if operator in constants else [before],
            [after],
            name=f"{operator.lower()}_{index}" if with_names else "",
        )
        for index, (operator, (before, after)) in enumerate(zip(operators, itertools.pairwise(names), strict=True))
    ]
    shape = (ROWS, WIDTH)
    used = {name: array for name, array in constants.items() if name in operators}
    path = folder / f"chain_{'_'.join(operators)}.onnx"
    return save(path, nodes, [tensor("x", shape)], [tensor("y", shape)], used)


def mixed_chain(folder: Path, seed: int, refused: str) -> Path:
    """Up to nine operators, of which a provider refuses `refused`; no two are such that ONNX Runtime makes one of them.

    In every other one the nodes have no names.
    """
    random = np.random.default_rng(seed)
    operators: list[str] = []
    while len(operators) < random.integers(3, 10) or len(set(operators) - {refused}) == 0:
        others = [one for one in (*_TAKEN, refused) if not operators or one != operators[-1]]
        operators.append(str(random.choice(others)))
    return chain(folder, operators, with_names=bool(seed % 2))

"""The device's digits model made to take a few milliseconds, as real ones do; it answers the same."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.faults.oracles import EDGE_BUNDLE

WIDTH = 512
LAYERS = 64


def heavy_bundle(folder: Path) -> Path:
    """Copy the bundle into `folder`, with about 270 million operations more in its model, which add zero."""
    target = folder / "digits-heavy"
    target.mkdir()
    for name in ("model.yaml", "labels.txt"):
        shutil.copy(EDGE_BUNDLE / name, target)
    model = onnx.load(str(EDGE_BUNDLE / "model.onnx"))
    _weigh_down(model.graph)
    onnx.save(model, str(target / "model.onnx"))
    return target


def _weigh_down(graph: Any) -> None:
    """Let `logits` be what it was, plus nothing times the sum of a chain of matrix products of `x`."""
    last = next(node for node in graph.node if "logits" in node.output)
    last.output[list(last.output).index("logits")] = "light"
    chain = ["spread", *(f"ballast_{layer}" for layer in range(LAYERS))]
    graph.node.extend(
        [
            helper.make_node("Reshape", ["x", "lines"], ["flat"]),
            helper.make_node("MatMul", ["flat", "widen"], ["spread"]),
            *(helper.make_node("MatMul", [before, "turn"], [after]) for before, after in itertools.pairwise(chain)),
            helper.make_node("ReduceMax", [chain[-1]], ["most"], keepdims=0),
            helper.make_node("Mul", ["most", "nothing"], ["zero"]),
            helper.make_node("Add", ["light", "zero"], ["logits"]),
        ]
    )
    random = np.random.default_rng(0)
    # An orthogonal matrix: numbers neither grow nor vanish.
    turn = np.linalg.qr(random.standard_normal((WIDTH, WIDTH)))[0].astype(np.float32)
    constants = {
        "lines": np.array([-1, 8], np.int64),
        "widen": random.standard_normal((8, WIDTH), np.float32),
        "turn": turn,
        "nothing": np.float32(0),
    }
    graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items())

"""One model, y = 2 x with x FP32 [-1, 2], for every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, save
from safetensors.numpy import save_file

from upwell.cloud.engines.base import Engine
from upwell.cloud.engines.fake import FakeEngine
from upwell.cloud.engines.model_settings import ModelSettings
from upwell.cloud.engines.onnx_engine import OnnxEngine
from upwell.cloud.engines.torch.torch_engine import TorchEngine
from upwell.shared.formats.torch_program import Program, ProgramNode, ProgramTensor, TensorRef, packed

Build: TypeAlias = Callable[[Path], Engine]

CLASSES = """
import torch

class Double(torch.nn.Module):
    inputs = (("x", "FP32", (-1, 2)),)
    outputs = (("y", "FP32", (-1, 2)),)

    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x.mul_(self.factor)
"""


def _onnx(**settings: object) -> Build:
    def build(tmp_path: Path) -> Engine:
        spec = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 2]) for name in "xy"]
        two = helper.make_tensor("two", TensorProto.FLOAT, [], [2.0])
        graph = helper.make_graph([helper.make_node("Mul", ["x", "two"], ["y"])], "double", spec[:1], spec[1:], [two])
        path = tmp_path / "model.onnx"
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
        return OnnxEngine.load("double", path, replace(ModelSettings(), **settings))  # type: ignore[arg-type]  # single keys

    return build


def _torch(**settings: object) -> Build:
    def build(tmp_path: Path) -> Engine:
        path = tmp_path / "model.safetensors"
        save_file({"factor": np.array([2.0], np.float32)}, path)
        named = ModelSettings(engine="torch", torch_class="classes_of_engine_suite.Double")
        return TorchEngine.load("double", path, replace(named, **settings))  # type: ignore[arg-type]  # single keys

    return build


def _program(tmp_path: Path) -> Engine:
    """Twice as a program of ATen operators in the metadata of its weights."""
    specs = [ProgramTensor(name=name, datatype="FP32", shape=("rows", 2)) for name in "xy"]
    arguments = {"self": TensorRef(tensor="x"), "other": TensorRef(tensor="two")}
    node = ProgramNode(operator="aten.mul.Tensor", arguments=arguments, outputs=("y",))
    program = Program(inputs=specs[:1], outputs=specs[1:], nodes=[node], weights=["two"])
    path = tmp_path / "model.safetensors"
    path.write_bytes(packed(program, {"two": ("FP32", (), np.float32(2).tobytes())}))
    return TorchEngine.load("double", path, ModelSettings(engine="torch"))


def _fake(**settings: tuple[int, ...]) -> Build:
    return lambda _: FakeEngine(**settings)  # type: ignore[arg-type]  # single keys


BUILDS: dict[str, Build] = {
    "fake": _fake(),
    "fake-prepared": _fake(buckets=(1, 2, 3, 33)),
    "onnx": _onnx(),
    "onnx-auto": _onnx(providers=("auto",)),
    "torch": _torch(),
    "torch-program": _program,
    "torch-auto": _torch(device="auto"),
    "torch-fp16": _torch(precision="fp16"),
    "torch-bf16": _torch(precision="bf16"),
    "torch-compiled": _torch(compile=True, buckets=(1, 2, 3, 33)),
}
if torch.cuda.is_available():
    BUILDS |= {
        "torch-cuda": _torch(device="cuda:0"),
        "torch-cuda-bf16": _torch(device="cuda:0", precision="bf16"),
        "torch-cuda-graphs": _torch(device="cuda:0", graphs=True, buckets=(1, 2, 3, 33)),
    }


@pytest.fixture(
    params=[pytest.param(one, marks=pytest.mark.exhaustive if one == "torch-compiled" else ()) for one in BUILDS]
)
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    (tmp_path / "classes_of_engine_suite.py").write_text(CLASSES)
    monkeypatch.syspath_prepend(tmp_path)
    engine = BUILDS[request.param](tmp_path)
    yield engine
    engine.close()

"""`compile: true`, with torch's own compiler: prepared for every bucket before the model serves, and never after."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from upwell.cloud.config import CloudConfig
from upwell.cloud.engines.model_settings import ModelSettings
from upwell.cloud.engines.torch.torch_engine import TorchEngine
from upwell.cloud.repository.model_folders import ModelFolder
from upwell.cloud.service.model_loader import CloudModel, load_model
from upwell.shared.errors import ModelFailed
from upwell.shared.oip.dataplane import Call

pytestmark = [
    pytest.mark.timeout(600),  # torch compiles its own headers first, once for each user of the machine
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),  # torch's own use
]

MODULE = """
import torch

class Scale(torch.nn.Module):
    inputs = (("x", "FP32", (-1, 2)),)
    outputs = (("y", "FP32", (-1, 2)),)
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.zeros(1))
    def forward(self, x):
        return torch.tanh(x) * self.factor

class Fixed(Scale):
    inputs, outputs = (("x", "FP32", (3, 2)),), (("y", "FP32", (3, 2)),)

class OpenShape(Scale):
    inputs = (("x", "FP32", (-1, -1)),)

class DependsOnNumbers(Scale):
    def forward(self, x):
        return x * self.factor if x.sum() > 0 else x

class ManyRows(Scale):
    outputs = (("y", "FP32", (1, 2)),)
"""


@pytest.fixture(autouse=True)
def classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "classes_of_compiled_tests.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def load(path: Path, name: str, **settings: object) -> TorchEngine:
    save_file({"factor": np.array([2.0], np.float32)}, path / "model.safetensors")
    dotted = f"classes_of_compiled_tests.{name}"
    own = ModelSettings("torch", torch_class=dotted, compile=True, **settings)  # type: ignore[arg-type]  # single keys
    return TorchEngine.load("m", path / "model.safetensors", own)


def compilations() -> dict[str, int]:
    from torch._dynamo.utils import counters  # takes seconds

    return {"graphs": counters["stats"]["unique_graphs"], "frames": sum(counters["frames"].values())}


@pytest.mark.slow
def test_nothing_is_compiled_after_ready_whatever_the_rows_and_the_thread(tmp_path: Path) -> None:
    version = tmp_path / "models" / "net" / "1"
    version.mkdir(parents=True)
    save_file({"factor": np.array([2.0], np.float32)}, version / "model.safetensors")
    model = {"engine": "torch", "class": "classes_of_compiled_tests.Scale", "compile": True, "max_batch": 8}
    config = CloudConfig.model_validate(
        {"serve": {"listen": ["127.0.0.1:0"], "models": str(tmp_path / "models")}, "models": {"net": model}}
    )
    before = compilations()
    served = load_model(ModelFolder("net", 1, version, tmp_path / "models"), config)
    assert isinstance(served, CloudModel), served
    ready = compilations()
    assert ready["graphs"] - before["graphs"] == 3  # 1, 4 and 8 rows

    def ask(rows: int) -> None:
        x = np.linspace(-2, 2, 2 * rows, dtype=np.float32).reshape(rows, 2)
        torch.set_num_threads(1 + rows % 2)  # what a thread had before is no matter
        answer = served.batcher.run({"x": x}, Call()).outputs["y"]
        np.testing.assert_allclose(answer, np.tanh(x) * 2, rtol=1e-5, atol=1e-6)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(ask, [*range(20), *range(20)]))
    assert compilations() == ready


@pytest.mark.slow
def test_models_and_reloads_of_one_class_do_not_use_up_what_torch_keeps_of_it(tmp_path: Path) -> None:
    """torch goes on uncompiled, with a line in its log, after eight versions of one piece of code."""
    x = np.ones((2, 2), np.float32)
    for _ in range(5):
        engine = load(tmp_path, "Scale", buckets=(1, 2))
        before = compilations()
        for rows in engine.buckets:
            engine.warm_up(rows)
        assert compilations()["graphs"] - before["graphs"] == 2
        np.testing.assert_allclose(engine.run({"x": x})["y"], np.tanh(x) * 2, rtol=1e-5)
        assert compilations()["graphs"] - before["graphs"] == 2
        engine.close()


@pytest.mark.slow
def test_half_precision_is_compiled_too(tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)
    answer = load(tmp_path, "Scale", precision="bf16", buckets=(4,)).run({"x": x})["y"]
    assert answer.dtype == np.float32
    np.testing.assert_allclose(answer, np.tanh(x) * 2, atol=0.02)


@pytest.mark.slow
def test_fixed_shapes_take_one_program(tmp_path: Path) -> None:
    engine = load(tmp_path, "Fixed")
    engine.warm_up(1)
    ready = compilations()
    x = np.ones((3, 2), np.float32)
    np.testing.assert_allclose(engine.run({"x": x})["y"], np.tanh(x) * 2, rtol=1e-5)
    assert compilations() == ready


def test_shapes_that_vary_otherwise_fail_the_load(tmp_path: Path) -> None:
    for name in ("OpenShape", "ManyRows"):
        with pytest.raises(ModelFailed, match=r"`compile: true` needs fixed shapes except for the rows"):
            load(tmp_path, name)


def test_a_network_that_cannot_be_compiled_whole_is_not_ready_and_says_why(tmp_path: Path) -> None:
    engine = load(tmp_path, "DependsOnNumbers")
    with pytest.raises(ModelFailed, match=r"the network cannot be compiled as a whole: .*ata-dependent") as caught:
        engine.warm_up(1)
    assert "\n" not in str(caught.value)


def test_a_missing_compiler_is_a_broken_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ModelFailed, match=r"needs a C\+\+ compiler, but there is no no-such-compiler"):
        load(tmp_path, "Scale")

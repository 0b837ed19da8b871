"""`upwell model export`: a torch class with its weights becomes a file that answers alike, or nothing is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file
from torch import nn

from tests.in_process import InProcess
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.shared.tensors import Array


class Net(nn.Module):
    inputs: ClassVar = (("x", "FP32", (-1, 8)), ("flag", "INT64", (-1, 2)))
    outputs: ClassVar = (("scores", "FP32", (-1, 3)), ("sum", "FP32", (-1, 1)))

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, width), nn.Linear(width, 3)

    def forward(self, x: torch.Tensor, flag: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.relu(self.first(x))
        return self.second(hidden) + flag.sum(1, keepdim=True).float(), hidden.sum(1, keepdim=True)


class Branching(Net):
    def forward(self, x: torch.Tensor, flag: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(x if x.sum() > 0 else -x, flag)


class Random(Net):
    def forward(self, x: torch.Tensor, flag: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores, total = super().forward(x, flag)
        return scores + torch.rand(1), total


class Varying(Net):
    inputs: ClassVar = (("x", "FP32", (-1, -1)), ("flag", "INT64", (-1, 2)))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    save_file(Net(5).state_dict(), tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def name(network: type[nn.Module]) -> str:
    return f"{__name__}.{network.__name__}"


WIDTH = ("--arguments", '{"width": 5}')


@pytest.mark.slow
def test_the_file_answers_any_number_of_rows_as_torch_does(weights: Path, in_process: InProcess) -> None:
    out = weights.with_name("model.onnx")
    done = in_process("model", "export", name(Net), weights, out, *WIDTH, "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["holds"]
    assert report["largest_relative_error"] < 1e-5
    assert str(Path(__file__).parent).encode() not in out.read_bytes()  # nor any other path of this machine
    network = Net(5).eval()
    network.load_state_dict({key: torch.from_numpy(value) for key, value in loaded(weights).items()})
    runtime = load_runtime(out)
    random = np.random.default_rng(1)
    for rows in (1, 2, 7):
        x, flag = random.standard_normal((rows, 8), np.float32), random.integers(0, 5, (rows, 2))
        with torch.inference_mode():
            expected = network(torch.from_numpy(x), torch.from_numpy(flag))
        answer = runtime.run({"x": x, "flag": flag})
        np.testing.assert_allclose(answer["scores"], expected[0], atol=1e-5)
        np.testing.assert_allclose(answer["sum"], expected[1], atol=1e-5)
    runtime.close()
    again = in_process("model", "export", name(Net), weights, out, *WIDTH)
    assert (again.code, "already exists" in again.err) == (2, True)
    assert in_process("model", "init", out, "--json").code == 0


def loaded(path: Path) -> dict[str, Array]:
    return dict(load_file(path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "code", "said"), [(Branching, 1, "cannot be exported to onnx"), (Random, 1, "nothing is written")]
)
def test_what_cannot_be_followed_or_answers_otherwise_leaves_no_file(
    weights: Path, in_process: InProcess, network: type[nn.Module], code: int, said: str
) -> None:
    done = in_process("model", "export", name(network), weights, weights.with_name("model.onnx"), *WIDTH)
    assert done.code == code
    assert said in done.out + done.err
    assert "\x1b" not in done.err
    assert [path.name for path in weights.parent.iterdir()] == ["weights.safetensors"]


@pytest.mark.parametrize(
    ("network", "out", "arguments", "said"),
    [
        (Net, "model.pt2", WIDTH, "ends in .onnx or .tflite"),
        (Net, "model.tflite", WIDTH, "pip install litert-torch"),
        (Net, "gone/model.onnx", WIDTH, "there is no folder"),
        (Net, "model.onnx", ("--arguments", "{"), "not JSON"),
        (Net, "model.onnx", (), "does not fit class Net"),
        (Varying, "model.onnx", WIDTH, "may vary; its class declares x [-1, -1]"),
    ],
)
def test_wrong_use_is_said_in_one_line(
    weights: Path, in_process: InProcess, network: type[nn.Module], out: str, arguments: tuple[str, ...], said: str
) -> None:
    done = in_process(
        "model", "export", name(network), weights, weights.parent / out, *arguments, without=["litert_torch"]
    )
    assert done.code == (1 if "class" in said else 2)
    assert said in done.err
    assert [path.name for path in weights.parent.iterdir()] == ["weights.safetensors"]


def test_a_missing_package_names_the_extra(weights: Path, in_process: InProcess) -> None:
    done = in_process(
        "model", "export", name(Net), weights, weights.with_name("m.onnx"), *WIDTH, without=["onnxscript"]
    )
    assert (done.code, done.out) == (2, "")
    assert "pip install 'upwell[export]'" in done.err


def test_missing_weights_are_said_in_words(tmp_path: Path, in_process: InProcess) -> None:
    done = in_process("model", "export", name(Net), tmp_path / "w.safetensors", tmp_path / "model.onnx", *WIDTH)
    assert (done.code, done.out) == (1, "")
    assert done.err.strip() == "error: w.safetensors cannot be read: No such file or directory"

"""What becomes of a process that has lost its accelerator. The loss is torch's error text, raised by a model on torch's
device `meta`: there is no accelerator here."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.faults.programs import UPWELL, Program
from tests.integration.cloud.processes import until
from tests.unit.models_for_tests import linear
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient, RemoteError

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="workers share a port on Linux")]

LIMIT_S = 60.0
LOST = "UNAVAILABLE: the device is lost until the service has restarted: "
MODULE = """
import torch

class Lost(torch.nn.Module):
    inputs, outputs = (("x", "FP32", (-1, -1)),), (("y", "FP32", (-1, -1)),)
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.zeros(1))
    def forward(self, x):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration with `lost` on the device and `linear` on the CPU."""
    (tmp_path / "module_of_a_lost_device.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in ("lost", "linear"):
        (tmp_path / "models" / name / "1").mkdir(parents=True)
    save_file({"factor": np.ones(1, np.float32)}, tmp_path / "models/lost/1/model.safetensors")
    linear(tmp_path).rename(tmp_path / "models/linear/1/model.onnx")
    return tmp_path


def config(folder: Path, workers: int) -> str:
    path = folder / "cloud.yaml"
    path.write_text(
        f"version: 1\nserve: {{listen: ['127.0.0.1:0'], models: models, workers: {workers}}}\n"
        "models: {lost: {engine: torch, class: module_of_a_lost_device.Lost, device: meta}}\n"
    )
    return str(path)


def ask(address: str, model: str) -> str:
    """The text of the error, "" for an answer."""
    client = OipClient(address)
    try:
        client.infer(InferRequest(model, {"x": np.ones((1, 8), np.float32)}), LIMIT_S)
    except RemoteError as error:
        return str(error)
    finally:
        client.close()
    return ""


def test_the_only_process_answers_the_rest_and_ends_with_1(folder: Path) -> None:
    with Program(["serve", "-c", config(folder, 1)], [UPWELL]) as program:
        address = program.address()
        assert ask(address, "linear") == ""
        assert LOST in ask(address, "lost")
        assert program.wait(LIMIT_S) == 1
        assert any("model lost version 1 has lost its device" in line for line in program.lines)
        assert any(line.startswith("draining") for line in program.lines)


def test_one_of_several_is_replaced_each_time(folder: Path) -> None:
    with Program(["serve", "-c", config(folder, 2)], [UPWELL]) as program:
        address = program.address()
        for deaths in (1, 2):
            assert LOST in ask(address, "lost")
            until(lambda deaths=deaths: sum("died: exit status 1" in line for line in program.lines) == deaths)  # type: ignore[misc]  # bound at once
            until(lambda deaths=deaths: sum("serves" in line for line in program.lines) == 2 + deaths)  # type: ignore[misc]  # as above
        assert {ask(address, "linear") for _ in range(8)} == {""}

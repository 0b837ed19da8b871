"""Files whose formats run code are never opened, and the reason says what would be right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from upwell.cloud.config import CloudConfig
from upwell.cloud.loading import BrokenModel, load_model
from upwell.cloud.repository.formats import why_never
from upwell.cloud.repository.repository import ModelFolder


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("model.pt", "model.pt holds a pickle or TorchScript, .* never loaded; export it as model.onnx"),
        ("model.PTH", "model.PTH holds a pickle"),
        ("model.pt2", "model.pt2 is a package of torch, .* never loaded; export it as model.onnx"),
        ("weights.pkl", "weights.pkl is a pickle.* never loaded; save its weights alone as model.safetensors"),
        ("pytorch_model.bin", "pytorch_model.bin is a pickle"),
    ],
)
@pytest.mark.parametrize("engine", ["onnx", "torch"])
def test_a_folder_with_such_a_file_alone_is_a_broken_model(tmp_path: Path, engine: str, name: str, says: str) -> None:
    version = tmp_path / "net" / "1"
    version.mkdir(parents=True)
    (version / name).write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    config = CloudConfig.model_validate(
        {"serve": {"listen": ["127.0.0.1:0"], "models": str(tmp_path)}, "defaults": {"engine": engine}}
    )
    broken = load_model(ModelFolder("net", 1, version, tmp_path), config)
    assert isinstance(broken, BrokenModel)
    assert broken.reason.startswith(f"no model.{'onnx' if engine == 'onnx' else 'safetensors'} in net/1; there is")
    assert re.search(says, broken.reason)


@pytest.mark.parametrize("names", [[], ["model.onnx", "weights.bin"], ["model.yaml", "labels.txt"]])
def test_nothing_speaks_against_other_files(names: list[str]) -> None:
    assert why_never(names) == ""

"""Files whose formats run code are never opened, and the reason says what would be right."""

from __future__ import annotations

import io
import os
import pickle
import re
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file

from upwell.cloud.config import CloudConfig
from upwell.cloud.engines.safetensors_weights import check_header
from upwell.cloud.repository.model_folders import ModelFolder, why_never
from upwell.cloud.service.model_loader import BrokenModel, load_model


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
    assert broken.reason.startswith(f"no model.{'onnx' if engine == 'onnx' else 'safetensors'} in net/1; available:")
    assert re.search(says, broken.reason)


def saved_by_torch() -> bytes:
    stream = io.BytesIO()
    torch.save({"factor": torch.ones(1)}, stream)
    return stream.getvalue()


PICKLED = [pickle.dumps({"factor": 1}, protocol) for protocol in range(2, 6)]


@pytest.mark.parametrize(
    ("engine", "file"), [("onnx", "model.onnx"), ("torch", "model.safetensors"), ("onnx", "weights.bin")]
)
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (saved_by_torch(), "{} is a zip archive, as written by torch.save and TorchScript, and is never loaded"),
        *((content, "{} is a pickle, which runs code when opened, and is never loaded") for content in PICKLED),
    ],
)
def test_such_a_file_is_known_under_any_name(tmp_path: Path, engine: str, file: str, content: bytes, says: str) -> None:
    version = tmp_path / "net" / "1"
    version.mkdir(parents=True)
    (version / file).write_bytes(content)
    models = {"net": {"engine": engine}}
    if engine == "torch":
        models["net"]["class"] = "torch.nn.Identity"
    config = CloudConfig.model_validate(
        {"serve": {"listen": ["127.0.0.1:0"], "models": str(tmp_path)}, "models": models}
    )
    broken = load_model(ModelFolder("net", 1, version, tmp_path), config)
    assert isinstance(broken, BrokenModel)
    assert says.format(file) in broken.reason


@pytest.mark.parametrize("names", [[], ["model.onnx", "weights.bin"], ["model.yaml", "labels.txt"]])
@pytest.mark.parametrize("content", [b"", b"\x08\x0a", b"\x80", b"\x80\x01", b"PK", b"version: 1"])
def test_nothing_speaks_against_other_files(tmp_path: Path, names: list[str], content: bytes) -> None:
    for name in names:
        (tmp_path / name).write_bytes(content)
    assert why_never([tmp_path / name for name in names]) == ""


def test_what_cannot_be_read_is_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # which nobody writes to
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    assert why_never([tmp_path / name for name in ("pipe", "folder", "loop", "gone")]) == ""


def test_weights_whose_header_begins_as_a_pickle_does_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    header = b'{"factor":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'.ljust(640)
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    assert path.read_bytes()[:2] == pickle.dumps(0, 2)[:2]
    check_header(path)
    assert load_file(path)["factor"].tolist() == [0]

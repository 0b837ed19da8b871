"""A bundle reads no file but its own, at any depth, and nothing in it keeps the agent waiting."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from tests.unit.edge.bundle.bundles import make
from tests.unit.edge.loads import side
from tests.unit.models_for_tests import linear, refer, tensor
from tests.unit.tflite_for_tests import TFLITE_PACKAGES
from tests.unit.tflite_for_tests import linear as tflite_linear
from upwell.edge.bundle.bundle import BundleRefused, Refusal, Trust
from upwell.edge.bundle.open_bundle import open_bundle
from upwell.edge.models.model_config import ModelSection
from upwell.edge.models.model_loader import Loader
from upwell.edge.runtimes.onnx.int8_saturation import saturation
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.runtimes.runtime_options import RuntimeOptions
from upwell.edge.updates.model_versions.model_start import loaded
from upwell.shared.errors import ConfigError
from upwell.shared.formats.onnx.file import BadOnnxFile, external_weights, fields

HIDDEN = "what-only-the-device-knows"
DESCRIPTION: dict[str, Any] = {
    "version": 1,
    "signature": {
        "inputs": {"x": {"kind": "tensor", "dtype": "FP32", "shape": [-1, 8]}},
        "outputs": {"logits": {"kind": "logits"}},
    },
}


def described(**more: Any) -> str:
    """A `model.yaml` for `linear`, with `labels` in its output and other keys at the top."""
    text = json.loads(json.dumps(DESCRIPTION))
    if "labels" in more:
        text["signature"]["outputs"]["logits"]["labels"] = more.pop("labels")
    return json.dumps({**text, **more})


def within_time(action: Callable[[], object]) -> object:
    """What it gives or raises; a read of a pipe that nobody writes to would never end."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(action())
        except Exception as error:  # noqa: BLE001  (judged by the caller)
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert outcome, "it still waits after 30 s"
    return outcome[0]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Three lines that are no business of a bundle's."""
    path = tmp_path / "secret"
    path.write_text(f"{HIDDEN}\nb\nc\n")
    return path


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A folder with a model whose description is still to come."""
    folder = tmp_path / "digits"
    folder.mkdir()
    linear(folder).rename(folder / "model.onnx")
    return folder


@pytest.fixture
def split(bundle: Path) -> Path:
    """The same with a head, which is the model itself."""
    head = bundle / "split" / "heads" / "c1"
    head.mkdir(parents=True)
    linear(head).rename(head / "model.onnx")
    (bundle / "model.yaml").write_text(described())
    cut = {"name": "c1", "head": "heads/c1/model.onnx", "tail": "m-c1", "raw_inputs": [], "outputs": [], "tensors": [
        {"name": "logits", "datatype": "FP32", "shape": [-1, 3], "bytes": 12}], "needs_post": False}  # fmt: skip
    facts = {"version": 1, "model": "m", "format": "onnx", "whole": "0" * 64, "cuts": [cut]}
    (bundle / "split" / "split.json").write_text(json.dumps(facts))
    return bundle


def heads_of(bundle: Path, split: object = "auto") -> list[str]:
    """The names of the heads that are loaded, each with the labels that it shows."""
    section = ModelSection.model_validate({"edge": {"bundle": str(bundle)}, "cloud": {"model": "m"}, "split": split})
    with loaded("m", section, Trust()) as model:
        return [label for head in model.heads for label in (head.cut.name, *head.edge.signature.outputs[0].labels)]


# --- Labels and golden vectors


@pytest.mark.parametrize("how", ["absolute", "dots", "link"])
@pytest.mark.parametrize("key", ["labels", "golden"])
@pytest.mark.parametrize("place", ["bundle", "file"])
def test_a_description_names_no_file_outside(bundle: Path, secret: Path, how: str, key: str, place: str) -> None:
    (bundle / "link").symlink_to(secret)
    name = {"absolute": str(secret), "dots": "../secret", "link": "link"}[how]
    more: dict[str, Any] = {"labels": name} if key == "labels" else {"golden": {"file": name}}
    (bundle / "model.yaml").write_text(described(**more))
    source = bundle if place == "bundle" else bundle / "model.onnx"
    with pytest.raises(ConfigError, match=r"is outside .*; copy it beside the model") as caught:
        Loader("m", side(source)).load()
    assert HIDDEN not in str(caught.value)


@pytest.mark.parametrize("how", ["absolute", "dots", "link"])
@pytest.mark.parametrize("plan", ["auto", "folder"])
def test_a_head_s_description_names_no_file_outside(
    split: Path, secret: Path, how: str, plan: str, caplog: pytest.LogCaptureFixture
) -> None:
    head = split / "split" / "heads" / "c1"
    (head / "link").symlink_to(secret)
    name = {"absolute": str(secret), "dots": "../../../../secret", "link": "link"}[how]
    (head / "model.yaml").write_text(described(labels=name))
    found = heads_of(split, "auto" if plan == "auto" else {"plan": str(split / "split")})
    assert found == []
    assert "is outside" in caplog.text
    assert HIDDEN not in caplog.text


def test_a_head_may_share_the_labels_of_its_bundle(split: Path) -> None:
    (split / "labels.txt").write_text("a\nb\nc\n")
    (split / "model.yaml").write_text(described(labels="labels.txt"))
    (split / "split" / "heads" / "c1" / "model.yaml").write_text(described(labels="../../../labels.txt"))
    assert heads_of(split) == ["c1", "a", "b", "c"]


@pytest.mark.parametrize("name", ["model.yaml", "early.yaml"])
@pytest.mark.parametrize("labels", ["/etc/hostname", "../../../../secret", "~/secret", "..\\secret"])
def test_a_bundle_is_refused_for_what_a_head_s_description_names(tmp_path: Path, name: str, labels: str) -> None:
    head = f"split/heads/c1/{name.replace('.yaml', '.onnx')}"
    description = f"post: [{{labels: {{from: x, labels: '{labels}'}}}}]"
    folder = make(tmp_path / "b", {head: b"x", f"split/heads/c1/{name}": description.encode()}).folder
    with pytest.raises(BundleRefused) as caught:
        open_bundle(folder)
    assert caught.value.refusal is Refusal.UNCONFINED


def test_a_bundle_is_let_through_whose_head_names_its_own_labels(tmp_path: Path) -> None:
    files = {"labels.txt": b"a", "split/heads/c1/model.yaml": b"post: [{labels: {labels: ../../../labels.txt}}]"}
    assert open_bundle(make(tmp_path / "b", files).folder).version == 3


# --- What is no plain file


@pytest.mark.parametrize(
    "name", ["model.onnx", "model.yaml", "labels.txt", "golden.npz", "named.npz", "calibrations.yaml"]
)
@pytest.mark.parametrize("what", ["pipe", "link to a pipe", "device"])
def test_what_is_no_plain_file_is_refused_without_waiting(bundle: Path, name: str, what: str) -> None:
    (bundle / "labels.txt").write_text("a\nb\nc\n")
    golden = {"golden": {"file": "named.npz"}} if name == "named.npz" else {}
    (bundle / "model.yaml").write_text(described(labels="labels.txt", **golden))
    (bundle / name).unlink(missing_ok=True)
    if what == "device":
        (bundle / name).symlink_to("/dev/zero")
    else:
        os.mkfifo(bundle / "pipe")
        if what == "pipe":
            (bundle / "pipe").rename(bundle / name)
        else:
            (bundle / name).symlink_to("pipe")
    outcome = within_time(lambda: Loader("m", side(bundle)).load())
    assert isinstance(outcome, ConfigError), outcome


@pytest.mark.parametrize("name", ["split/split.json", "split/heads/c1/model.onnx", "split/heads/c1/model.yaml"])
def test_a_pipe_among_the_heads_keeps_nobody_waiting(split: Path, name: str) -> None:
    (split / name).unlink(missing_ok=True)
    os.mkfifo(split / name)
    outcome = within_time(lambda: heads_of(split))
    assert isinstance(outcome, ConfigError) or outcome == []


@pytest.mark.parametrize("name", ["model.onnx", "model.yaml", "calibrations.yaml", "golden.npz"])
def test_no_file_of_a_bundle_is_a_link_that_leads_out(bundle: Path, name: str) -> None:
    (bundle / "model.yaml").write_text(described())
    outside = bundle.parent / f"outside-{name}"
    if (bundle / name).exists():
        (bundle / name).rename(outside)
    else:
        outside.write_text("x")
    (bundle / name).symlink_to(outside)
    with pytest.raises(ConfigError, match="points outside"):
        Loader("m", side(bundle)).load()


# --- External data


def quantized(folder: Path, entry: Callable[[Any], None]) -> Path:
    """A model with int8 weights of 100, which lie where `entry` says; the file is what the check of the CPU reads."""
    weights = numpy_helper.from_array(np.full((8, 3), 100, np.int8), "w")
    (folder / "w.bin").write_bytes(weights.raw_data)
    refer(weights, "w.bin")
    del weights.external_data[:]
    entry(weights)
    zero, scale = (
        numpy_helper.from_array(np.array(0, np.uint8), "z"),
        numpy_helper.from_array(np.array(1, np.float32), "s"),
    )
    node = helper.make_node("QLinearMatMul", ["x", "s", "z", "w", "s", "wz", "s", "z"], ["y"])
    made = [weights, zero, scale, numpy_helper.from_array(np.array(0, np.int8), "wz")]
    shapes = [tensor("x", ["rows", 8], "UINT8")], [tensor("y", ["rows", 3], "UINT8")]
    path = folder / "model.onnx"
    path.write_bytes(helper.make_model(helper.make_graph([node], "g", *shapes, made)).SerializeToString())
    return path


def test_the_check_and_the_reader_take_the_same_of_two_values(tmp_path: Path) -> None:
    """Parsing keeps both values only in bytes that nobody has parsed, so the model is put together by hand."""
    path = quantized(tmp_path, lambda weights: weights.external_data.add(key="location", value="w.bin"))
    assert saturation(path, {"avx2"})  # that it reads the weights at all
    os.mkfifo(tmp_path / "pipe1")
    plain = b"\x0a\x08location\x12\x05w.bin"
    crafted = b"\x0a\x08location\x12\x05pipe1\x12\x05w.bin"
    data = path.read_bytes()
    assert data.count(b"\x6a" + bytes([len(plain)]) + plain) == 1
    path.write_bytes(_grown(data, b"\x6a" + bytes([len(plain)]) + plain, b"\x6a" + bytes([len(crafted)]) + crafted))
    assert within_time(lambda: saturation(path, {"avx2"})) == saturation(quantized(tmp_path, _plain), {"avx2"})


def _plain(weights: Any) -> None:
    weights.external_data.add(key="location", value="w.bin")


def _grown(data: bytes, old: bytes, new: bytes) -> bytes:
    """The model with other bytes in its first initializer, and the lengths around it put right."""

    def length(number: int) -> bytes:
        low = bytes([number & 0x7F | (0x80 if number > 0x7F else 0)])
        return low + (length(number >> 7) if number > 0x7F else b"")

    def rewritten(begin: int, end: int, path: tuple[int, ...]) -> bytes:
        if not path:
            return data[begin:end].replace(old, new)
        parts = []
        for number, value, (start, stop) in fields(data, begin, end):
            if number == path[0] and isinstance(value, tuple):
                inner = rewritten(*value, path[1:])
                parts.append(length(number << 3 | 2) + length(len(inner)) + inner)
            else:
                parts.append(data[start:stop])
        return b"".join(parts)

    return rewritten(0, len(data), (7, 5))


@pytest.mark.parametrize("length", ["99999999999999", "-1", "7 bytes", "25"])
def test_no_memory_is_taken_for_weights_that_are_only_promised(tmp_path: Path, length: str) -> None:
    def entry(weights: Any) -> None:
        _plain(weights)
        weights.external_data.add(key="length", value=length)

    assert saturation(quantized(tmp_path, entry), {"avx2"}) == ""


@pytest.mark.parametrize("name", ["../../secret.bin", "/etc/hostname", "gone.bin", "pipe"])
@pytest.mark.parametrize("is_embedded", [0, 1])
def test_a_compiled_program_in_another_file_lies_in_the_bundle(tmp_path: Path, name: str, is_embedded: int) -> None:
    """An accelerator's library would read it; one that the node holds itself is bytes and names nothing."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "program.bin").write_bytes(b"program")
    for where in (name, "program.bin"):
        node = helper.make_node("EPContext", ["x"], ["y"], ep_cache_context=where, embed_mode=is_embedded)
        graph = helper.make_graph([node], "g", [tensor("x", [1])], [tensor("y", [1])])
        path = tmp_path / "model.onnx"
        path.write_bytes(helper.make_model(graph).SerializeToString())
        if where == "program.bin" or is_embedded:
            assert external_weights(path) == (() if is_embedded else (tmp_path / "program.bin",))
        else:
            with pytest.raises(BadOnnxFile, match=r"refused|missing"):
                external_weights(path)


@pytest.mark.parametrize("package", TFLITE_PACKAGES)
def test_a_tflite_model_names_no_other_file(tmp_path: Path, package: str) -> None:
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    flatbuffers = pytest.importorskip("flatbuffers")
    path = tflite_linear(tmp_path)
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    group = schema.ExternalBufferGroupT()
    group.name = "/etc/hostname"
    model.externalBufferGroups = [group]
    builder = flatbuffers.Builder(0)
    builder.Finish(model.Pack(builder), b"TFL3")
    options = RuntimeOptions.model_validate({"package": package})
    load_runtime(path, options).close()
    path.write_bytes(bytes(builder.Output()))
    with pytest.raises(ConfigError, match="weights are in other files, which is not supported"):
        load_runtime(path, options)

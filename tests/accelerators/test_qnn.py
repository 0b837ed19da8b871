"""Qualcomm's provider with its HTP backend for x86-64: it executes here without a device, slowly.

What it shows are operators, numbers, placement and ahead-of-time compilation; never speed or power. Its other
backends fail in silence, and each way is shown twice: as ONNX Runtime lets it pass, and as it is named here.
"""

from __future__ import annotations

import itertools
import logging
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.accelerators.environment import needs
from tests.accelerators.record import record

needs("qnn")

import onnxruntime  # noqa: E402  (only where the module is not skipped)
import onnxruntime_qnn  # noqa: E402  (as above)

from tests.accelerators.onnx_models import chain, fixed_digits, mixed_chain  # noqa: E402  (as above)
from upwell.edge.models.model_config import EdgeSide  # noqa: E402  (as above)
from upwell.edge.models.model_loader import Loader  # noqa: E402  (as above)
from upwell.edge.runtimes.base import Placement  # noqa: E402  (as above)
from upwell.edge.runtimes.onnx import providers  # noqa: E402  (as above)
from upwell.edge.runtimes.onnx.compiled_cache import COMPILED_CACHES, CacheEntry  # noqa: E402  (as above)
from upwell.edge.runtimes.onnx.runtime import OnnxRuntime, survey  # noqa: E402  (as above)
from upwell.edge.runtimes.placement import AcceleratorNotUsable  # noqa: E402  (as above)
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions  # noqa: E402  (as above)
from upwell.tools.demo.digit_data import ASSETS, heldout  # noqa: E402  (as above)

ROW = "QNN, HTP backend on x86-64 (no device)"
QNN = "QNNExecutionProvider"
REFUSED = "Erf"
OPEN_DIGITS = ASSETS / "edge" / "digits" / "model.onnx"


def qnn(require: Any = "prefer", **options: str | int) -> AcceleratorOptions:
    return AcceleratorOptions(provider="qnn", require=require, options={"backend_type": "htp", **options})


def refusal(path: Path, wanted: AcceleratorOptions) -> str:
    with pytest.raises(AcceleratorNotUsable) as error:
        OnnxRuntime(path, None, wanted)
    return str(error.value)


def bare_session(path: Path, backend_type: str) -> Any:
    """As ONNX Runtime makes it, without any of the checks."""
    OnnxRuntime(chain(path.parent, ["Relu"]), None, qnn())  # registers the plugin
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == QNN]
    settings.add_provider_for_devices(devices, {"backend_type": backend_type})
    return onnxruntime.InferenceSession(str(path), settings)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backends that write the model down do so into the current folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    return fixed_digits(tmp_path)


def pictures(count: int) -> list[Any]:
    return [(image / 255).astype(np.float32)[None, None] for image in heldout().images[:count]]


# --- Placement


def test_every_node_of_an_int8_model_is_taken_in_strict_mode(digits: Path) -> None:
    there, here = OnnxRuntime(digits, None, qnn("must")), OnnxRuntime(digits)
    assert there.placement.nodes_on_accelerator == there.placement.nodes > 20
    assert there.instances == 1
    for picture in pictures(40):
        assert there.run({"x": picture})["logits"].argmax() == here.run({"x": picture})["logits"].argmax()
    assert there.placement.reason == ""


def test_without_must_it_leaves_quantization_at_the_edges_to_the_cpu(digits: Path) -> None:
    placement = OnnxRuntime(digits, None, qnn()).placement
    assert placement.left_on_cpu == ("x_QuantizeLinear (QuantizeLinear)", "logits_DequantizeLinear (DequantizeLinear)")
    assert placement.nodes_on_accelerator == placement.nodes - 2


def test_must_names_what_stays_behind(tmp_path: Path) -> None:
    path = chain(tmp_path, ["Sigmoid", REFUSED])
    assert OnnxRuntime(path, None, qnn()).placement == Placement("qnn", 2, 1, ("erf_1 (Erf)",))
    assert refusal(path, qnn("must")).endswith("is required but leaves 1 of 2 nodes on the CPU: erf_1 (Erf)")


def test_a_model_of_varying_size_is_not_taken_and_told_what_to_do() -> None:
    advice = "; the batch of 'x' is open, but many accelerators accept only fixed sizes: write `batch: 1`"
    for require, nodes in (("prefer", "took none of the 23 nodes"), ("must", "leaves 23 of 23 nodes on the CPU")):
        told = refusal(OPEN_DIGITS, qnn(require))
        assert nodes in told
        assert told.endswith(advice)


@pytest.mark.parametrize("batch", [1, 4])
def test_with_a_fixed_batch_a_model_of_varying_size_is_taken_whole(batch: int, tmp_path: Path) -> None:
    for state in ("compiled", "kept"):
        runtime = OnnxRuntime(OPEN_DIGITS, RuntimeOptions(batch=batch), qnn("must"), cache_dir=tmp_path / "compiled")
        assert runtime.placement.nodes_on_accelerator == runtime.placement.nodes > 20, state
        assert [spec.shape for spec in (*runtime.inputs, *runtime.outputs)] == [(batch, 1, 8, 8), (batch, 10)]
    assert len(list((tmp_path / "compiled").iterdir())) == 1
    wanted = {"provider": "qnn", "require": "must", "options": {"backend_type": "htp"}}
    edge = Loader(
        "m",
        EdgeSide.model_validate(
            {"bundle": str(OPEN_DIGITS.parent), "batch": batch, "accelerator": wanted, "runtime": "onnx"}
        ),
    ).load()
    assert (edge.accelerator, edge.state, edge.report.checked_by) == ("qnn", "ready", "the CPU's answers")
    expected = OnnxRuntime(OPEN_DIGITS).run({"x": np.concatenate(pictures(7))})["logits"]
    scores = edge.run_now({"image": heldout().images[:7].astype(np.uint8)[..., None]}).outputs["scores"]
    np.testing.assert_array_equal(scores.argmax(axis=1), expected.argmax(axis=1))


def test_coverage_with_a_fixed_batch() -> None:
    for by_profile in (False, True):
        assert survey(OPEN_DIGITS, RuntimeOptions(), qnn("must"), by_profile=by_profile).node_share == 0
        found = survey(OPEN_DIGITS, RuntimeOptions(batch=1), qnn("must"), by_profile=by_profile)
        assert (len(found.nodes), found.node_share) == (23, 1)


def test_a_kind_of_device_that_is_not_here(digits: Path) -> None:
    assert "finds no npu device here; it finds cpu" in refusal(digits, qnn(device="npu"))
    assert OnnxRuntime(digits, None, qnn(device="cpu")).placement.nodes_on_accelerator > 0


# --- Silent failures


def test_providers_with_the_name_of_a_plugin_is_the_cpu(digits: Path) -> None:
    OnnxRuntime(digits, None, qnn())
    assert QNN in onnxruntime.get_available_providers()
    session = onnxruntime.InferenceSession(str(digits), providers=[QNN])
    assert session.get_providers() == ["CPUExecutionProvider"]
    for _ in range(2):  # registered by now, and given nodes all the same
        assert OnnxRuntime(digits, None, qnn("must")).placement.nodes_on_accelerator > 0
    record(ROW, "traps", "`providers=[plugin]` is the CPU: never asked for by name")


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_other_backends_are_the_cpu(digits: Path, backend: str) -> None:
    session = bare_session(digits, backend)
    assert session.get_providers()[0] == QNN
    assert session.run(None, {"x": pictures(1)[0]})[0].shape == (1, 10)
    assert "took none of the 23 nodes" in refusal(digits, qnn(backend_type=backend))
    assert "leaves 23 of 23 nodes on the CPU" in refusal(digits, qnn("must", backend_type=backend))
    record(ROW, "traps", f"`backend_type: {backend}` is the CPU: refused, it takes no node")


def test_saver_executes_nothing_and_is_named(digits: Path) -> None:
    session, here = bare_session(digits, "saver"), OnnxRuntime(digits)
    assert session.get_providers()[0] == QNN
    pair = pictures(2)
    answers = [here.run({"x": picture})["logits"] for picture in pair]
    saved = [session.run(None, {"x": picture})[0] for picture in pair]
    assert not all(np.allclose(a, b, atol=0.5) for a, b in zip(answers, saved, strict=True))
    assert "'saver' writes the model to a file and executes nothing" in refusal(digits, qnn(backend_type="saver"))
    record(ROW, "traps", "`backend_type: saver` answers with what was in memory: refused by name")


@pytest.mark.parametrize("library", ["libQnnSaver.so", "libQnnIr.so"])
def test_writers_are_named_by_their_library_too(digits: Path, library: str) -> None:
    path = str(Path(onnxruntime_qnn.get_library_path()).with_name(library))
    wanted = AcceleratorOptions(provider="qnn", options={"backend_path": path})
    assert "executes nothing" in refusal(digits, wanted)


def test_without_a_backend_it_says_what_it_needs(digits: Path) -> None:
    assert "Could not determine default backend" in refusal(digits, AcceleratorOptions(provider="qnn"))


def test_a_provider_that_fails_in_every_run_costs_no_answer(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "_QNN_WRITERS", ())  # `ir` takes all nodes and then fails to execute them
    there, here = OnnxRuntime(digits, None, qnn("must", backend_type="ir")), OnnxRuntime(digits)
    assert there.placement.nodes_on_accelerator == there.placement.nodes
    for picture in pictures(3):
        np.testing.assert_array_equal(there.run({"x": picture})["logits"], here.run({"x": picture})["logits"])
    assert there.placement.nodes_on_accelerator == 0
    assert "qnn failed while running; the model continues on the CPU: " in there.placement.reason


# --- Ahead of time


@pytest.fixture
def kept(digits: Path, tmp_path: Path) -> Path:
    """The folder of a model that was compiled and kept."""
    OnnxRuntime(digits, None, qnn("must"), cache_dir=tmp_path / "compiled").close()
    (folder,) = (tmp_path / "compiled").iterdir()
    return folder


def opened(digits: Path, kept: Path, wanted: AcceleratorOptions) -> OnnxRuntime:
    runtime = OnnxRuntime(digits, None, wanted, cache_dir=kept.parent)
    assert runtime.placement.nodes_on_accelerator > 20
    picture = pictures(1)[0]
    plain = OnnxRuntime(digits, None, wanted)
    np.testing.assert_array_equal(runtime.run({"x": picture})["logits"], plain.run({"x": picture})["logits"])
    return runtime


@pytest.mark.parametrize("require", ["must", "prefer"])
def test_what_was_compiled_is_loaded_again(digits: Path, tmp_path: Path, require: str) -> None:
    wanted, folder = qnn(require), tmp_path / "compiled"
    OnnxRuntime(digits, None, wanted, cache_dir=folder).close()
    runtime = OnnxRuntime(digits, None, wanted, cache_dir=folder)
    assert runtime.placement == OnnxRuntime(digits, None, wanted).placement
    (entry,) = folder.iterdir()
    assert {path.name for path in entry.iterdir()} == {"context.onnx", "context_qnn.bin", "seal.json"}
    opened(digits, entry, wanted)


def test_must_and_prefer_are_compiled_apart(digits: Path, kept: Path) -> None:
    assert OnnxRuntime(digits, None, qnn(), cache_dir=kept.parent).placement.left_on_cpu
    assert not OnnxRuntime(digits, None, qnn("must"), cache_dir=kept.parent).placement.left_on_cpu
    assert len(list(kept.parent.iterdir())) == 2


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("name", ["context.onnx", "context_qnn.bin", "seal.json"])
@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
def test_a_damaged_entry_is_compiled_anew(digits: Path, kept: Path, name: str, damage: Any) -> None:
    damage(kept / name)
    opened(digits, kept, qnn("must"))
    assert list(kept.parent.iterdir()) == [kept]
    assert CacheEntry(kept, COMPILED_CACHES[QNN]).kept() == Placement("qnn", 29, 29)


def test_a_whole_entry_that_the_provider_refuses_is_compiled_anew(
    digits: Path, kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (kept / "context_qnn.bin").write_bytes(b"of another driver")
    (kept / "seal.json").unlink()
    moved = kept.rename(kept.with_name("moved"))
    entry = CacheEntry(kept, COMPILED_CACHES[QNN])
    assert entry.keep(moved, Placement("qnn", 29, 29))
    with caplog.at_level(logging.WARNING):
        opened(digits, kept, qnn("must"))
    assert "is compiled again" in caplog.text


def test_a_folder_that_cannot_be_written_costs_no_accelerator(
    digits: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with caplog.at_level(logging.WARNING):
        assert OnnxRuntime(digits, None, qnn("must"), cache_dir=blocked).placement.nodes_on_accelerator > 20
    assert "cannot be cached" in caplog.text


def test_a_full_disk_costs_no_accelerator(digits: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # for files, so that the context does not fit
    try:
        runtime = OnnxRuntime(digits, None, qnn("must"), cache_dir=tmp_path / "compiled")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert runtime.placement.nodes_on_accelerator > 20
    assert "cannot be cached: QNNExecutionProvider refused the model: Failed to write" in caplog.text
    assert list((tmp_path / "compiled").iterdir()) == []


def test_a_refused_model_leaves_nothing_behind(tmp_path: Path) -> None:
    path = chain(tmp_path, ["Sigmoid", REFUSED])
    with pytest.raises(AcceleratorNotUsable):
        OnnxRuntime(path, None, qnn("must"), cache_dir=tmp_path / "compiled")
    assert list((tmp_path / "compiled").iterdir()) == []


# --- Coverage


def test_coverage_equals_the_placement_of_the_profile(tmp_path: Path) -> None:
    for seed in range(12):
        path = mixed_chain(tmp_path, seed, REFUSED)
        assigned = survey(path, RuntimeOptions(), qnn(), by_profile=False)
        profiled = survey(path, RuntimeOptions(), qnn(), by_profile=True)
        assert assigned.nodes == profiled.nodes, path.name
        operators = path.stem.split("_")[1:]
        assert [node.operator for node in assigned.nodes] == operators
        assert [node.operator for node in assigned.left_on_cpu] == [REFUSED] * operators.count(REFUSED)
        runs = [name for name, _ in itertools.groupby(operators, lambda name: name == REFUSED)]
        assert assigned.partitions == runs.count(False)


def test_coverage_tells_partitions_and_work(tmp_path: Path) -> None:
    found = survey(chain(tmp_path, ["MatMul", REFUSED, "MatMul", "Relu"]), RuntimeOptions(), qnn(), by_profile=False)
    assert (found.source, found.accelerator, found.partitions) == ("graph assignment", "qnn", 2)
    assert [node.partition for node in found.nodes] == [0, None, 1, 1]
    assert [node.work for node in found.nodes] == [256, 32, 256, 32]
    assert found.work_share == 544 / 576


def test_coverage_of_a_rewritten_model_has_the_models_nodes(digits: Path) -> None:
    # QNN lays pictures out anew, so half of the nodes that it names are none of the model's.
    found = survey(digits, RuntimeOptions(), qnn(), by_profile=False)
    assert len(found.nodes) == 23
    assert [node.name for node in found.left_on_cpu] == ["x_QuantizeLinear", "logits_DequantizeLinear"]
    assert found.partitions == 1
    assert found.nodes == survey(digits, RuntimeOptions(), qnn(), by_profile=True).nodes
    assert survey(digits, RuntimeOptions(), qnn("must"), by_profile=False).node_share == 1

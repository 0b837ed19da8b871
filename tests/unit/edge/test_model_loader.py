"""What is tested when a model loads, what is left for which reason, and what is taken in its place."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ai_edge_quantizer import quantizer, recipe

from tests.unit.edge.loads import CLASSES, FEATURES, bundle, make, record, requests, side, software
from tests.unit.models_for_tests import identity
from upwell.edge.models.edge_model import EdgeModel
from upwell.edge.models.model_loader import COMPILED_NAME, Loader
from upwell.edge.runtimes.device_lock import DeviceBusy, try_out
from upwell.edge.runtimes.probe_process import RESULTS_NAME
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.shared.errors import ConfigError
from upwell.shared.platform.memory import resident_bytes
from upwell.shared.tensors import Array

NAME = "m"

Load = Callable[..., EdgeModel]


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests, so that each library, option and model is tried out once."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture
def load(state_dir: Path) -> Load:
    def from_config(*what: object, **how: object) -> EdgeModel:
        return Loader(NAME, side(*what, **how), state_dir=state_dir).load()  # type: ignore[arg-type]  # `side` checks them

    return from_config


def reasons(edge: EdgeModel) -> list[tuple[str, str]]:
    return [(one.what, one.reason) for one in edge.report.attempts]


def answers(edge: EdgeModel) -> Array:
    return edge.run_now(requests()).outputs["scores"]


@pytest.fixture
def right(tmp_path: Path) -> Array:
    """What seed 0 answers."""
    return load_runtime(make(tmp_path / "right", "onnx")).run(requests())["scores"]


@pytest.mark.parametrize("suffix", ["onnx", "tflite"])
def test_a_model_that_answers_its_golden_vectors_is_ready(tmp_path: Path, load: Load, suffix: str) -> None:
    edge = load(bundle(tmp_path / "b", onnx=0) if suffix == "onnx" else bundle(tmp_path / "b", tflite=0))
    report = edge.report
    assert (report.state, report.checked_by, report.attempts) == ("ready", "golden vectors", ())
    assert 0 < report.warm_up_s < report.load_s
    assert 0 <= report.memory_bytes < 1 << 30
    assert edge.runtime.name == suffix
    assert edge.source.bundle is not None
    assert edge.source.bundle.folder == tmp_path / "b"


def test_one_that_answers_wrongly_is_left_for_the_other_file(
    tmp_path: Path, load: Load, right: Array, caplog: pytest.LogCaptureFixture
) -> None:
    edge = load(bundle(tmp_path / "b", onnx=1, tflite=0))
    (what, reason), *more = reasons(edge)
    assert (what, more, edge.runtime.name, edge.state) == ("onnx on the CPU", [], "tflite", "ready")
    assert reason.startswith("it answers the golden vectors wrongly: scores: relative error 1")
    np.testing.assert_allclose(answers(edge), right, rtol=1e-4, atol=1e-4)
    left = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert left == [f"model m: onnx on the CPU is not used: {reason}"]


def test_where_all_answer_wrongly_each_attempt_is_told(tmp_path: Path, load: Load) -> None:
    with pytest.raises(ConfigError) as error:
        load(bundle(tmp_path / "b", onnx=1, tflite=2))
    told = [str(problem) for problem in error.value.problems]
    assert all(line.startswith("models.m.edge: ") and "golden vectors wrongly" in line for line in told)
    assert [line.split(": ")[1].split()[0] for line in told][:2] == ["onnx", "tflite"]


def test_the_description_sets_how_near_is_near_enough(tmp_path: Path, load: Load) -> None:
    folder = bundle(tmp_path / "b", onnx=0)
    with np.load(folder / "golden.npz") as file:
        golden = dict(file)
    golden["out.scores"] = golden["out.scores"] * np.float32(1.07)
    np.savez(folder / "golden.npz", **golden)
    with pytest.raises(ConfigError, match=r"relative error 6\.54 %, at most 5 %"):
        load(folder)
    describe(folder, "{tolerance: 10%}")
    assert load(folder).report.checked_by == "golden vectors"


def describe(folder: Path, golden: str, name: str = "model.yaml") -> None:
    (folder / name).write_text(
        "version: 1\nsignature:\n"
        f"  inputs: {{x: {{kind: tensor, dtype: FP32, shape: [-1, {FEATURES}]}}}}\n"
        f"  outputs: {{scores: {{kind: logits}}}}\ngolden: {golden}\n"
    )


def test_golden_vectors_that_are_named_must_be_there(tmp_path: Path, load: Load) -> None:
    folder = bundle(tmp_path / "b", golden=False, onnx=0)
    assert load(folder).report.checked_by == "nothing"
    describe(folder, "{file: golden.npz}")
    with pytest.raises(ConfigError, match=r"golden\.npz: the golden vectors cannot be read: No such file"):
        load(folder)


def test_golden_vectors_that_are_broken_are_no_reason_to_do_without(tmp_path: Path, load: Load) -> None:
    folder = bundle(tmp_path / "b", onnx=0)
    (folder / "golden.npz").write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match="these are not golden vectors"):
        load(folder)


def test_a_bare_file_beside_the_description_of_a_bundle_does_not_pass_for_one(
    tmp_path: Path, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    model = make(tmp_path, "onnx").rename(tmp_path / "model.int8.onnx")
    describe(tmp_path, "{}")
    load(model)
    assert "model.yaml is ignored: the description of this model file must be named model.int8.yaml" in caplog.text


def test_a_bare_file_is_tested_where_its_description_names_golden_vectors(
    tmp_path: Path, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    model = make(tmp_path, "onnx")
    record(tmp_path, model)
    assert load(model).report.checked_by == "nothing"
    assert "nothing tests or verifies it" in caplog.text
    assert "model.yaml is not read" not in caplog.text
    caplog.clear()
    describe(tmp_path, "{file: golden.npz}")
    assert load(model).report.checked_by == "golden vectors"
    assert "nothing verifies it" in caplog.text


@pytest.mark.tflite_runtime
def test_garbage_of_a_package_is_caught_and_the_other_one_taken(tmp_path: Path, load: Load, right: Array) -> None:
    folder = tmp_path / "b"
    model = make(folder, "tflite")
    record(folder, model)
    made = quantizer.Quantizer(str(model))
    made.load_quantization_recipe(recipe.dynamic_wi8_afp32())
    made.quantize().export_model(str(model), overwrite=True)
    describe(folder, "{}")
    with pytest.raises(ConfigError, match=r"scores: argmax agrees in \d+ of \d\d+ rows, 95 % needed"):
        load(folder, package="tflite_runtime")
    edge = load(folder)
    assert edge.runtime.version.startswith("ai-edge-litert")
    assert (answers(edge).argmax(axis=1) == right.argmax(axis=1)).mean() > 0.9


def test_an_accelerator_that_answers_rightly_is_used_and_its_device_held(
    tmp_path: Path, load: Load, software_delegate: Path, right: Array, state_dir: Path
) -> None:
    edge = load(bundle(tmp_path / "b", onnx=0, tflite=0), software(software_delegate))
    assert (edge.report.checked_by, edge.accelerator, edge.state) == ("golden vectors", "software", "ready")
    assert edge.runtime.placement.nodes_on_accelerator == edge.runtime.placement.nodes == 1
    np.testing.assert_allclose(answers(edge), right, rtol=1e-4, atol=1e-4)
    assert (state_dir / RESULTS_NAME).exists()
    with pytest.raises(DeviceBusy):
        try_out(str(software_delegate), {}, 0.0)
    edge.close()
    try_out(str(software_delegate), {}, 0.0).release()


def test_a_model_that_is_forgotten_gives_its_device_back(tmp_path: Path, load: Load, software_delegate: Path) -> None:
    edge = load(bundle(tmp_path / "b", tflite=0), software(software_delegate))
    del edge
    try_out(str(software_delegate), {}, 0.0).release()


@pytest.mark.parametrize("golden", [True, False])
def test_garbage_of_an_accelerator_is_caught(
    tmp_path: Path, load: Load, software_delegate: Path, right: Array, golden: bool
) -> None:
    edge = load(bundle(tmp_path / "b", golden=golden, tflite=0), software(software_delegate, wrong=1))
    said = "it answers the golden vectors wrongly" if golden else "its answers differ from the CPU's"
    assert all(reason.startswith(f"{said}: scores: relative error") for _, reason in reasons(edge))
    assert reasons(edge)[0][0].endswith("on software")
    assert (edge.state, edge.accelerator) == ("fallback", "")
    np.testing.assert_allclose(answers(edge), right, rtol=1e-4, atol=1e-4)
    try_out(str(software_delegate), {}, 0.0).release()


def test_without_golden_vectors_the_cpu_is_the_witness(tmp_path: Path, load: Load, software_delegate: Path) -> None:
    edge = load(bundle(tmp_path / "b", golden=False, tflite=0), software(software_delegate))
    assert (edge.report.checked_by, edge.accelerator) == ("the CPU's answers", "software")


def test_the_next_in_the_list_is_tried(tmp_path: Path, load: Load, software_delegate: Path) -> None:
    listed = [software(software_delegate, fail_prepare=1), software(software_delegate)]
    edge = load(bundle(tmp_path / "b", tflite=0), *listed, package="ai_edge_litert")
    (what, reason), *more = reasons(edge)
    assert (what, more) == ("tflite (ai_edge_litert) on software", [])
    assert "refused the model" in reason
    assert (edge.accelerator, edge.state) == ("software", "ready")


def test_one_that_fails_in_its_first_runs_is_left(tmp_path: Path, load: Load, software_delegate: Path) -> None:
    # The probing process runs it once; here it fails in the second run, that of the golden vectors.
    edge = load(bundle(tmp_path / "b", tflite=0), software(software_delegate, fail_after=1), package="ai_edge_litert")
    (what, reason), *_ = reasons(edge)
    assert (what, edge.state) == ("tflite (ai_edge_litert) on software", "fallback")
    assert "software failed while running" in reason


@pytest.mark.parametrize(
    ("options", "said"),
    [({"claim": "18"}, "but leaves 1 of 1 nodes on the CPU: 0 FULLY_CONNECTED"), ({"wrong": 1}, "golden vectors")],
)
def test_a_must_that_cannot_be_kept_fails_with_every_attempt(
    tmp_path: Path, load: Load, software_delegate: Path, options: dict[str, int], said: str
) -> None:
    listed = [software(software_delegate, "must", **options), software(software_delegate, fail_prepare=1)]
    with pytest.raises(ConfigError) as error:
        load(bundle(tmp_path / "b", tflite=0), *listed, package="ai_edge_litert")
    first, second = error.value.problems
    assert str(first).startswith("models.m.edge: tflite (ai_edge_litert) on software: ")
    assert said in str(first)
    assert "refused the model" in str(second)


def test_a_must_is_kept_where_something_after_it_can_be_used(
    tmp_path: Path, load: Load, software_delegate: Path
) -> None:
    listed = [software(software_delegate, "must", claim="18"), software(software_delegate)]
    edge = load(bundle(tmp_path / "b", tflite=0), *listed, package="ai_edge_litert")
    assert (edge.accelerator, len(reasons(edge))) == ("software", 1)


def test_a_model_that_cannot_run_is_told_by_its_name_in_the_configuration(tmp_path: Path, load: Load) -> None:
    from onnx import helper

    from tests.unit.models_for_tests import save, tensor

    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    shape = {"shape": np.array([7], np.int64)}
    path = save(tmp_path / "m.onnx", [node], [tensor("x", ["rows", 2])], [tensor("y", [7])], shape)
    with pytest.raises(ConfigError, match=r"^models\.m\.edge: the model fails on a run with zeros"):
        load(path)


def test_what_is_wrong_in_the_description_keeps_its_place(tmp_path: Path, load: Load) -> None:
    model = identity(tmp_path)
    described = model.with_suffix(".yaml")
    described.write_text(
        "signature:\n  inputs: {x: {kind: tensor, dtype: FP32, shape: [-1, 3]}}\n  outputs: {y: {kind: tensor}}\n"
    )
    with pytest.raises(ConfigError) as error:
        load(model)
    assert str(error.value).startswith(f"{described}:")


def test_memory_is_what_the_system_says() -> None:
    before = resident_bytes()
    with mmap.mmap(-1, 1 << 25) as ballast:  # not from the heap, which may hold as much that is free
        for page in range(0, len(ballast), mmap.PAGESIZE):
            ballast[page] = 1
        assert resident_bytes() - before > 1 << 24


def test_the_names_in_the_state_folder_are_these(state_dir: Path) -> None:
    assert {path.name for path in state_dir.iterdir()} <= {RESULTS_NAME, COMPILED_NAME}


def test_classes_of_the_models_here_are_many(right: Array) -> None:
    assert len(np.unique(right.argmax(axis=1))) > CLASSES // 4

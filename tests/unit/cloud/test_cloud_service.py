"""The service over real models, without the wire: versions, answers, broken models, draining."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.unit.models_for_tests import endless, linear, save, tensor, two_in_two_out
from upwell.cloud.batching import model_queue
from upwell.cloud.batching.batcher import Batcher
from upwell.cloud.batching.model_queue import DEFAULT_PRIORITY, priority_of
from upwell.cloud.config import CloudConfig
from upwell.cloud.engines.fake import FakeEngine
from upwell.cloud.engines.model_settings import ModelSettings
from upwell.cloud.service.cloud_service import CloudIntrospection, CloudService
from upwell.cloud.service.model_loader import (
    BrokenModel,
    CloudModel,
    calls_at_once,
    find_models,
    load_model,
    offered,
    run_settings,
)
from upwell.shared.errors import (
    CallerLeft,
    ConfigError,
    DeadlineExceeded,
    InvalidRequest,
    ModelFailed,
    ModelNotFound,
    Unavailable,
)
from upwell.shared.oip.dataplane import Call, InferRequest
from upwell.shared.oip.model_statistics import StatisticsCounter
from upwell.shared.signature.processor import Processor
from upwell.shared.tensors import Array, TensorSpec

LIMIT_S = 10.0
DESCRIPTION = """
version: 1
signature:
  inputs: {features: {kind: tensor, dtype: FP32, shape: [-1, 8]}}
  outputs: {probabilities: {kind: probabilities, labels: [a, b, c]}}
pre: [{normalize: {from: features, to: x, scale: 2.0}}]
post: [{softmax: {from: scores, to: probabilities}}]
"""


WITHOUT_ROWS = """
version: 1
signature:
  rows: false
  inputs: {{{inputs}}}
  outputs: {{{output}: {{kind: tensor}}}}
"""


def gathering(folder: Path) -> Path:
    """A model that picks the rows `i` of `x`, and so gives as many as it is asked for."""
    folder.mkdir(parents=True)
    inputs, outputs = [tensor("x", ["n", 2]), tensor("i", ["k"], "INT64")], [tensor("y", ["k", 2])]
    save(folder / "model.onnx", [helper.make_node("Gather", ["x", "i"], ["y"])], inputs, outputs)
    taken = "x: {kind: tensor, dtype: FP32, shape: [-1, 2]}, i: {kind: tensor, dtype: INT64, shape: [-1]}"
    (folder / "model.yaml").write_text(WITHOUT_ROWS.format(inputs=taken, output="y"))
    return folder


def config(root: Path, **settings: object) -> CloudConfig:
    serve = {"listen": ["127.0.0.1:0"], "models": root}
    return CloudConfig.model_validate({"version": 1, "serve": serve, **settings})


def service(root: Path, **settings: object) -> CloudService:
    configured = config(root, **settings)
    return CloudService([load_model(folder, configured) for folder in find_models(configured)])


def put(root: Path, name: str, version: int, seed: int = 0) -> Path:
    folder = root / name / str(version)
    folder.mkdir(parents=True)
    return linear(folder, seed).rename(folder / "model.onnx")


def fake(engine: FakeEngine, **settings: int) -> CloudModel:
    batcher = Batcher(engine, ModelSettings(max_batch=settings.get("max_batch", 1)))
    processor = Processor(None, engine.inputs, engine.outputs, "onnx")
    return CloudModel("fake", "1", "fake", "sha256:0", ModelSettings(), engine, processor, batcher)


X = np.arange(16, dtype=np.float32).reshape(2, 8)


def test_an_answer_has_its_facts_and_the_highest_version_by_number(tmp_path: Path) -> None:
    for version in (1, 9, 10):
        put(tmp_path, "m", version, seed=version)
    cloud = service(tmp_path)
    answer = cloud.infer(InferRequest("m", {"x": X}, id="one"), Call())
    assert (answer.model, answer.version, answer.id) == ("m", "10", "one")
    assert set(answer.parameters) == {"upwell.cloud_queue_ms", "upwell.cloud_compute_ms", "upwell.cloud_digest"}
    assert str(answer.parameters["upwell.cloud_digest"]).startswith("sha256:")
    assert 0 <= float(answer.parameters["upwell.cloud_queue_ms"]) < 1000
    assert 0 < float(answer.parameters["upwell.cloud_compute_ms"]) < 1000
    older = cloud.infer(InferRequest("m", {"x": X}, version="9"), Call())
    assert older.version == "9"
    assert not np.array_equal(older.outputs["scores"], answer.outputs["scores"])
    cloud.close()


def test_unknown_models_versions_and_outputs_name_what_there_is(tmp_path: Path) -> None:
    put(tmp_path, "m", 1)
    cloud = service(tmp_path)
    with pytest.raises(ModelNotFound, match="no model 'n' here; available: m"):
        cloud.infer(InferRequest("n", {"x": X}), Call())
    with pytest.raises(ModelNotFound, match="no version '01'; available: 1"):
        cloud.metadata("m", "01")
    with pytest.raises(InvalidRequest, match="no output 'logits'; available: scores"):
        cloud.infer(InferRequest("m", {"x": X}, outputs=("logits",)), Call())


def test_only_the_outputs_asked_for_come(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    two_in_two_out(tmp_path / "m" / "1").rename(tmp_path / "m" / "1" / "model.onnx")
    ones = np.ones((1, 3), np.float32)
    answer = service(tmp_path).infer(InferRequest("m", {"a": ones, "b": ones}, outputs=("sum",)), Call())
    assert {name: array.tolist() for name, array in answer.outputs.items()} == {"sum": [[2, 2, 2]]}


def test_a_description_maps_the_signature_to_the_model(tmp_path: Path) -> None:
    put(tmp_path, "m", 1)
    plain = service(tmp_path).infer(InferRequest("m", {"x": 2 * X}), Call()).outputs["scores"]
    (tmp_path / "m" / "model.yaml").write_text(DESCRIPTION)
    cloud = service(tmp_path)
    metadata = cloud.metadata("m")
    assert metadata.inputs == (TensorSpec("features", "FP32", (-1, 8)),)
    assert [spec.name for spec in metadata.outputs] == ["probabilities"]
    probabilities = cloud.infer(InferRequest("m", {"features": X}), Call()).outputs["probabilities"]
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)
    assert probabilities.argmax(axis=1).tolist() == plain.argmax(axis=1).tolist()
    told = cloud.infer(InferRequest("m", {"features": X}, parameters={"upwell.labels": True}), Call()).parameters
    assert told["upwell.labels.probabilities"] == '["a", "b", "c"]'


def test_pre_processing_is_not_begun_for_a_caller_that_left(tmp_path: Path) -> None:
    put(tmp_path, "m", 1)
    (tmp_path / "m" / "model.yaml").write_text(DESCRIPTION)
    gone = Call()
    gone.cancelled.set()
    with pytest.raises(CallerLeft):  # and not InvalidRequest, which preparing this would raise
        service(tmp_path).infer(InferRequest("m", {}), gone)


def test_metadata_has_versions_platform_and_the_signature(tmp_path: Path) -> None:
    put(tmp_path, "m", 2)
    put(tmp_path, "m", 11)
    metadata = service(tmp_path).metadata("m")
    assert (metadata.name, metadata.versions, metadata.platform) == ("m", ("2", "11"), "onnxruntime_onnx")
    assert metadata.inputs == (TensorSpec("x", "FP32", (-1, 8)),)
    assert metadata.outputs == (TensorSpec("scores", "FP32", (-1, 3)),)


def test_the_server_announces_what_decides_bit_equality(tmp_path: Path) -> None:
    put(tmp_path, "m", 1)
    announced = service(tmp_path).server_metadata()
    assert announced.name == "upwell-cloud"
    assert announced.extensions[0] == "upwell/0.1"
    assert any(extension.startswith("upwell.pre:numpy=") for extension in announced.extensions)


@pytest.mark.parametrize(
    ("break_it", "reason", "logged"),
    [
        (lambda folder: (folder / "model.onnx").write_bytes(b"no"), "not an ONNX file", "not an ONNX file"),
        (lambda folder: (folder / "model.onnx").unlink(), "no model.onnx in bad/1", "no model.onnx"),
        (lambda folder: (folder / "model.yaml").write_text("version: 3"), "its model.yaml is wrong", "model.yaml:1"),
        (lambda folder: (folder / "model.yaml").write_text(DESCRIPTION.replace("-1, 8", "-1, 9")), "is wrong", "pre"),
    ],
    ids=["file", "missing", "description", "mismatch"],
)
def test_a_broken_model_is_not_ready_and_says_why_while_others_serve(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, break_it: object, reason: str, logged: str
) -> None:
    put(tmp_path, "good", 1)
    put(tmp_path, "bad", 1)
    assert callable(break_it)
    break_it(tmp_path / "bad" / "1")
    cloud = service(tmp_path)
    assert cloud.ready("good")
    assert not cloud.ready("bad")
    with pytest.raises(Unavailable, match=f"'bad' version 1 is not ready: .*{reason}") as caught:
        cloud.infer(InferRequest("bad", {"x": X}), Call())
    assert str(tmp_path) not in str(caught.value)
    assert "model bad version 1 is not served" in caplog.text
    assert logged in caplog.text
    cloud.infer(InferRequest("good", {"x": X}), Call())


def test_a_broken_newest_version_is_not_silently_replaced_by_an_older_one(tmp_path: Path) -> None:
    put(tmp_path, "m", 1)
    put(tmp_path, "m", 2).write_bytes(b"no")
    cloud = service(tmp_path)
    assert not cloud.ready("m")
    assert cloud.ready("m", "1")
    assert cloud.metadata("m", "1").versions == ("1",)
    with pytest.raises(Unavailable, match="version 2"):
        cloud.infer(InferRequest("m", {"x": X}), Call())


def test_settings_of_a_model_that_is_not_there_are_an_error(tmp_path: Path) -> None:
    put(tmp_path, "m", 1)
    with pytest.raises(ConfigError, match=r"models\.n: not in .*; available: m"):
        find_models(config(tmp_path, models={"n": {"engine": "onnx"}}))


def test_a_model_that_has_no_rows_is_not_batched_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    linear(folder, rows=1).rename(folder / "model.onnx")
    cloud = service(tmp_path, defaults={"max_batch": 8})
    assert "has no batch dimension" in caplog.text
    answer = cloud.infer(InferRequest("m", {"x": X}), Call())  # two rows, which the model takes one by one
    assert answer.outputs["scores"].shape == (2, 3)


@pytest.mark.parametrize("how", [{"max_batch": 8}, {"buckets": [4, 8]}])
def test_requests_of_a_model_whose_outputs_do_not_share_the_rows_are_neither_merged_nor_cut(
    tmp_path: Path, how: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    gathering(tmp_path / "m" / "1")
    cloud = service(tmp_path, defaults=how)
    assert "has no batch dimension" in caplog.text
    many = np.arange(24, dtype=np.float32).reshape(12, 2)
    answer = cloud.infer(InferRequest("m", {"x": many, "i": np.array([11, 0, 3])}), Call())
    assert answer.outputs["y"].tolist() == many[[11, 0, 3]].tolist()
    assert CloudIntrospection(cloud, StatisticsCounter(), None).config("m").max_rows == 0


def test_without_a_word_in_model_yaml_the_error_says_what_inputs_of_different_lengths_need(tmp_path: Path) -> None:
    (gathering(tmp_path / "m" / "1") / "model.yaml").unlink()
    with pytest.raises(InvalidRequest, match=r"input 'i' has 3 rows, but 'x' has 2; .* `rows: false`"):
        service(tmp_path).infer(InferRequest("m", {"x": X[:, :2], "i": np.array([1, 0, 0])}), Call())


def test_an_engine_that_needs_certain_rows_refuses_a_model_whose_outputs_do_not_share_them(tmp_path: Path) -> None:
    specs = (TensorSpec("x", "FP32", (-1, 8)),), (TensorSpec("y", "FP32", (-1, 3)),)
    with pytest.raises(ModelFailed, match="`rows: false`, but the engine is prepared for 1, 4 rows alone"):
        run_settings(FakeEngine(inputs=specs[0], outputs=specs[1], buckets=(1, 4)), ModelSettings(), False, "m")


def test_a_fixed_first_dimension_that_is_no_number_of_rows_is_left_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    linear(folder, rows=4).rename(folder / "model.onnx")
    taken = "x: {kind: tensor, dtype: FP32, shape: [4, 8]}"
    (folder / "model.yaml").write_text(WITHOUT_ROWS.format(inputs=taken, output="scores"))
    cloud = service(tmp_path, defaults={"buckets": [4]})
    four = np.ones((4, 8), np.float32)
    assert cloud.infer(InferRequest("m", {"x": four}), Call()).outputs["scores"].shape == (4, 3)


@pytest.mark.parametrize(("repository", "calls"), [({}, 3 + 0 + 3 + 10), ({"control": True}, 2 * (3 + 0 + 2 * 13))])
def test_there_is_room_for_what_may_run_and_wait_and_twice_that_where_models_change(
    tmp_path: Path, repository: object, calls: int
) -> None:
    put(tmp_path, "a", 1)
    put(tmp_path, "b", 1)
    put(tmp_path, "b", 2).write_bytes(b"no")
    serve = {"listen": ["127.0.0.1:0"], "models": tmp_path, "repository": repository}
    configured = config(
        tmp_path, serve=serve, defaults={"instances": 3, "max_queue": 10}, models={"a": {"max_queue": 0}}
    )
    models = [load_model(folder, configured) for folder in find_models(configured)]
    assert calls_at_once(models, configured) == calls
    assert tuple(CloudService(models).versions_by_model) == ("a", "b")


def test_draining_refuses_new_requests_and_waits_for_those_under_way() -> None:
    engine = FakeEngine()
    cloud = CloudService([fake(engine), BrokenModel("bad", "1", "no reason")])
    assert cloud.ready()
    engine.hold()
    request = InferRequest("fake", {"x": np.ones((1, 2), np.float32)})
    with ThreadPoolExecutor(2) as pool:
        under_way = pool.submit(cloud.infer, request, Call())
        assert engine.started.acquire(timeout=LIMIT_S)
        assert not cloud.drain(0.01)
        assert not cloud.ready()
        assert not cloud.ready("fake")
        with pytest.raises(Unavailable, match="draining"):
            cloud.infer(request, Call())
        drained = pool.submit(cloud.drain, LIMIT_S)
        engine.let_go()
        assert drained.result(LIMIT_S)
        assert under_way.result(LIMIT_S).outputs["y"].tolist() == [[2, 2]]
    assert len(engine.batches) == 1
    cloud.close()
    with pytest.raises(ModelFailed, match="closed"):
        engine.run(request.inputs)


class ClosingEngine(FakeEngine):
    """Tells when it is closed."""

    def __init__(self, answer: Callable[[Mapping[str, Array]], dict[str, Array]] | None = None) -> None:
        super().__init__(answer or (lambda batch: {"y": batch["x"] * 2}))
        self.closed = threading.Event()

    def close(self) -> None:
        super().close()
        self.closed.set()


def test_a_request_ends_on_the_engine_it_began_on_which_is_closed_then() -> None:
    old, new = ClosingEngine(), ClosingEngine(lambda batch: {"y": batch["x"] * 3})
    cloud = CloudService([fake(old)])
    request = InferRequest("fake", {"x": np.ones((1, 2), np.float32)})
    old.hold()
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(cloud.infer, request, Call())
        assert old.started.acquire(timeout=LIMIT_S)
        cloud.put("fake", offered([fake(new)], cloud.versions_by_model["fake"]))
        assert cloud.infer(request, Call()).outputs["y"].tolist() == [[3, 3]]
        assert not old.closed.is_set()
        old.let_go()
        assert under_way.result(LIMIT_S).outputs["y"].tolist() == [[2, 2]]
    assert old.closed.wait(LIMIT_S)
    assert not new.closed.is_set()
    cloud.put("fake", None)
    assert new.closed.is_set()
    with pytest.raises(ModelNotFound, match="available: none"):
        cloud.infer(request, Call())
    assert cloud.drain(0)


class Deserted:
    """A service with a run under way until `gate` is set, of which every caller has left at the deadline."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.engine = ClosingEngine(self._answer)
        self.model = fake(self.engine)
        self.cloud = CloudService([self.model])
        self.engine.hold()
        with ThreadPoolExecutor(2) as pool:
            patient = pool.submit(self.cloud.infer, request(1), Call())
            assert self.engine.started.acquire(timeout=LIMIT_S)
            hasty = pool.submit(self.cloud.infer, request(0), Call(deadline_s=time.monotonic() + 0.5))
            while not self.model.batcher.waiting:
                time.sleep(0.001)
            self.engine.let_go()
            patient.result(LIMIT_S)
            with pytest.raises(DeadlineExceeded, match="before the model answered"):
                hasty.result(LIMIT_S)

    def _answer(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        assert batch["x"][0, 0] == 1 or self.gate.wait(LIMIT_S)
        return {"y": batch["x"]}


def request(value: float) -> InferRequest:
    return InferRequest("fake", {"x": np.full((1, 2), value, np.float32)})


def test_an_engine_is_not_closed_during_a_run_of_which_every_caller_has_left() -> None:
    scene = Deserted()
    scene.cloud.put("fake", None)
    assert not scene.engine.closed.wait(0.02)
    scene.gate.set()
    assert scene.engine.closed.wait(LIMIT_S)


def test_a_drain_waits_for_a_run_of_which_every_caller_has_left() -> None:
    scene = Deserted()
    assert not scene.cloud.drain(0.01)
    scene.gate.set()
    assert scene.cloud.drain(LIMIT_S)


def test_what_is_loaded_while_draining_is_closed_again() -> None:
    old, new = ClosingEngine(), ClosingEngine()
    cloud = CloudService([fake(old)])
    assert cloud.drain(0)
    cloud.put("fake", offered([fake(new)], cloud.versions_by_model["fake"]))
    assert new.closed.is_set()
    assert not old.closed.is_set()
    cloud.close()
    assert old.closed.is_set()


def test_a_failing_model_leaves_nothing_under_way() -> None:
    def answer(batch: object) -> dict[str, Array]:
        raise ModelFailed(f"in {threading.current_thread().name}")

    cloud = CloudService([fake(FakeEngine(answer))])
    with pytest.raises(ModelFailed, match="in MainThread"):
        cloud.infer(InferRequest("fake", {"x": np.ones((1, 2), np.float32)}), Call())
    assert cloud.drain(0)


def test_a_priority_of_nothing_is_the_default_one_and_none_that_is_no_level_is_taken() -> None:
    assert [priority_of(named) for named in ({}, {"priority": 0}, {"priority": 1})] == [
        DEFAULT_PRIORITY,
        DEFAULT_PRIORITY,
        1,
    ]
    for wrong in (-1, 1.5, True, "high"):
        with pytest.raises(InvalidRequest, match="a whole number from 0"):
            priority_of({"priority": wrong})


def test_a_model_that_never_answers_is_stopped_when_its_callers_have_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_queue, "ABANDONED_S", 0.1)
    (tmp_path / "m" / "1").mkdir(parents=True)
    endless(tmp_path / "m" / "1").rename(tmp_path / "m" / "1" / "model.onnx")
    cloud = service(tmp_path)
    with pytest.raises(DeadlineExceeded):
        cloud.infer(InferRequest("m", {"x": np.ones((1, 2), np.float32)}), Call(deadline_s=time.monotonic() + 0.1))
    zeros = np.zeros((1, 2), np.float32)
    np.testing.assert_array_equal(cloud.infer(InferRequest("m", {"x": zeros}), Call()).outputs["y"], zeros)
    assert cloud.drain(LIMIT_S)

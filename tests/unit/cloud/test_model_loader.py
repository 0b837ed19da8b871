"""From a folder to a served model: prepared for every batch before it is there, and never an end of the service."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.unit.models_for_tests import identity, linear
from upwell.cloud import config as config_module
from upwell.cloud.batching.device_scheduler import device_for
from upwell.cloud.config import CloudConfig
from upwell.cloud.engines.base import Engine
from upwell.cloud.engines.batch_checks_and_buckets import buckets_for
from upwell.cloud.engines.fake import FakeEngine
from upwell.cloud.engines.model_settings import ModelSettings
from upwell.cloud.engines.onnxruntime_import import onnxruntime
from upwell.cloud.service import model_loader
from upwell.cloud.service.cloud_service import CloudIntrospection, CloudService
from upwell.cloud.service.model_loader import BrokenModel, CloudModel, calls_at_once, find_models, load_model
from upwell.shared.errors import ModelFailed
from upwell.shared.oip.dataplane import Call, InferRequest
from upwell.shared.oip.grpc.server.triton_extensions import LoadSettings
from upwell.shared.oip.model_statistics import StatisticsCounter
from upwell.shared.tensors import Array


class Kind:
    """An engine's class for a test: `make` is its `load`."""

    file_name = "model.onnx"
    platform = "fake"

    def __init__(self, make: Callable[[ModelSettings], Engine]) -> None:
        self._make = make

    def load(self, name: str, path: Path, settings: ModelSettings) -> Engine:
        return self._make(settings)


class PreparedEngine(FakeEngine):
    """One that compiles: it answers only those numbers of rows that it was warmed up for."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(self._compiled, buckets=buckets_for(settings.buckets, settings.max_batch))
        self.warm: list[int] = []

    def _compiled(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        assert len(batch["x"]) in self.warm
        return {"y": batch["x"] * 2}

    def warm_up(self, rows: int) -> None:
        self.warm.append(rows)
        super().warm_up(rows)


def load(
    root: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[ModelSettings], Engine], **model: object
) -> CloudModel | BrokenModel:
    (root / "m" / "1").mkdir(parents=True)
    (root / "m" / "1" / "model.onnx").write_bytes(b"\x08\x07")
    monkeypatch.setattr(model_loader, "engine_type", lambda _: Kind(make))
    config = CloudConfig.model_validate(
        {"serve": {"listen": ["127.0.0.1:0"], "models": str(root)}, "models": {"m": model}}
    )
    (folder,) = find_models(config)
    return load_model(folder, config)


@pytest.mark.parametrize(
    ("model", "buckets"),
    [({}, (1,)), ({"max_batch": 8}, (1, 4, 8)), ({"buckets": [2, 5]}, (2, 5))],
)
def test_what_an_engine_prepares_is_what_its_batches_have(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    model: dict[str, object],
    buckets: tuple[int, ...],
) -> None:
    with caplog.at_level("INFO"):
        served = load(tmp_path, monkeypatch, PreparedEngine, **model)
    assert isinstance(served, CloudModel)
    assert isinstance(served.engine, PreparedEngine)
    assert tuple(served.engine.warm) == served.engine.buckets == buckets
    listed = ", ".join(map(str, buckets))
    assert caplog.messages == [f"model m version 1: preparing batches of {listed} rows"]
    for rows in range(1, 20):
        x = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
        np.testing.assert_array_equal(served.batcher.run({"x": x}, Call()).outputs["y"], x * 2)
    assert {len(batch["x"]) for batch in served.engine.batches} <= set(buckets)


def test_preparing_that_takes_long_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(model_loader, "_LONG_S", 0.0)
    with caplog.at_level("INFO"):
        load(tmp_path, monkeypatch, PreparedEngine, buckets=[2, 5])
    assert [line.rpartition(" in ")[0] for line in caplog.messages[1:]] == [
        "model m version 1: 1 of 2 sizes prepared, the latest (2 rows)",
        "model m version 1: 2 of 2 sizes prepared, the latest (5 rows)",
    ]


@pytest.mark.parametrize("error", [RuntimeError("/srv/secret"), MemoryError(), AttributeError("no float8")])
def test_whatever_a_framework_raises_the_model_is_broken_and_the_log_says_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fail(_: ModelSettings) -> Engine:
        raise error

    broken = load(tmp_path, monkeypatch, fail)
    assert broken == BrokenModel("m", "1", "it cannot be loaded; the service's log says why")
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_names_that_strangers_chose_write_no_lines_of_the_log_and_pass_as_a_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Names of files may hold anything, and what is no UTF-8 at all could not be told to a caller over gRPC."""
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    (folder / os.fsdecode(b"\xff\x1b[31m\nERROR forged")).touch()
    config = CloudConfig.model_validate({"serve": {"listen": ["127.0.0.1:0"], "models": str(tmp_path)}})
    (found,) = find_models(config)
    broken = load_model(found, config)
    assert isinstance(broken, BrokenModel)
    assert broken.reason == r"no model.onnx in m/1; available: \udcff\x1b[31m\nERROR forged"
    assert caplog.messages == [f"model m version 1 is not served: {broken.reason}"]


def test_keys_of_a_model_yaml_write_no_lines_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    identity(folder).rename(folder / "model.onnx")
    (folder / "model.yaml").write_text('version: 1\n"a\\e[31m\\nERROR forged": 1\n')
    config = CloudConfig.model_validate({"serve": {"listen": ["127.0.0.1:0"], "models": str(tmp_path)}})
    (found,) = find_models(config)
    assert isinstance(load_model(found, config), BrokenModel)
    assert r"a\x1b[31m\nERROR forged: unknown key" in caplog.text
    assert "\x1b" not in caplog.text
    assert "\nERROR forged" not in caplog.text


def test_the_operator_is_told_where_and_callers_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: ModelSettings) -> Engine:
        raise ModelFailed("class Net cannot be built: No such file or directory: '/srv/secret/words.txt'")

    broken = load(tmp_path, monkeypatch, fail)
    assert broken == BrokenModel("m", "1", "class Net cannot be built: No such file or directory: 'words.txt'")
    assert "'/srv/secret/words.txt'" in caplog.text


LABELLED = """
version: 1
signature:
  inputs: {x: {kind: tensor, dtype: FP32, shape: [-1, 2]}}
  outputs: {y: {kind: probabilities, labels: LABELS}}
"""


@pytest.mark.parametrize("how", ["../../../labels.txt", "{outside}", "link.txt"])
def test_labels_come_from_the_repository_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str) -> None:
    """Else a model.yaml from elsewhere could carry any text of the machine into answers."""
    root, outside = tmp_path / "models", tmp_path / "labels.txt"
    outside.write_text("root\nsecret\n")
    folder = root / "m" / "1"
    folder.mkdir(parents=True)
    identity(folder).rename(folder / "model.onnx")
    (folder / "link.txt").symlink_to(outside)
    description = folder.parent / "model.yaml" if "{" in how else folder / "model.yaml"
    description.write_text(LABELLED.replace("LABELS", how.format(outside=outside)))
    config = CloudConfig.model_validate({"serve": {"listen": ["127.0.0.1:0"], "models": str(root)}})
    (found,) = find_models(config)
    assert isinstance(load_model(found, config), BrokenModel)
    assert f"is outside {root}; copy it beside the model" in caplog.text
    (root / "m" / "labels.txt").write_text("no\nyes\n")
    description.write_text(LABELLED.replace("LABELS", str(root / "m" / "labels.txt")))
    assert isinstance(load_model(found, config), CloudModel)


@pytest.mark.parametrize(
    ("runs_on", "device"), [("cuda", "cuda:0"), ("cuda:0", "cuda:0"), ("cuda:1", "cuda:1"), ("cpu", None)]
)
def test_models_take_turns_on_the_device_on_which_they_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs_on: str, device: str | None
) -> None:
    shared = {name: device_for(name) for name in ("cuda:0", "cuda:1")}
    served = load(tmp_path, monkeypatch, lambda _: FakeEngine(device=runs_on))
    assert isinstance(served, CloudModel)
    found = [name for name, one in shared.items() if one is served.batcher._device]
    assert found == ([] if device is None else [device])
    told = CloudIntrospection(CloudService([served]), StatisticsCounter(), None).config("m")
    assert told.placement == ("KIND_CPU" if device is None else "KIND_GPU")


@pytest.mark.skipif(len(onnxruntime.get_available_providers()) > 2, reason="this machine may have an accelerator")
@pytest.mark.parametrize("model", [{"device": "auto"}, {"providers": ["auto"]}])
def test_models_that_found_no_accelerator_do_not_take_turns_and_use_all_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, object]
) -> None:
    monkeypatch.setattr(config_module, "usable_cores", lambda: 6)
    for name in ("a", "b"):
        folder = tmp_path / name / "1"
        folder.mkdir(parents=True)
        identity(folder).rename(folder / "model.onnx")
    serve = {"listen": ["127.0.0.1:0"], "models": str(tmp_path)}
    config = CloudConfig.model_validate({"serve": serve, "defaults": model})
    a, b = [load_model(folder, config) for folder in find_models(config)]
    assert isinstance(a, CloudModel)
    assert isinstance(b, CloudModel)
    assert a.batcher._device is not b.batcher._device
    told = CloudIntrospection(CloudService([a, b]), StatisticsCounter(), None)
    assert [told.config(name).placement for name in ("a", "b")] == ["KIND_CPU", "KIND_CPU"]
    assert a.settings.instances == a.batcher._queue.instances == 6
    assert calls_at_once([a, b], config) == 2 * (6 + a.settings.max_queue)
    fixed = load_model(find_models(config)[0], config, asked=LoadSettings(instances=2))
    assert isinstance(fixed, CloudModel)
    assert fixed.settings.instances == 2


@pytest.mark.parametrize(
    ("configured", "asked", "buckets"),
    [([4], 4, (4,)), ([1, 4, 16], 16, (1, 4, 16)), ([1, 4, 16], 8, (1, 4, 8)), ([1, 4], 32, (1, 4, 32))],
)
def test_a_load_with_another_batch_size_keeps_the_buckets_below_it(
    tmp_path: Path, configured: list[int], asked: int, buckets: tuple[int, ...]
) -> None:
    """A model whose rows are fixed would else take no requests with fewer."""
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    linear(folder, rows=asked if len(configured) == 1 else None).rename(folder / "model.onnx")
    serve = {"listen": ["127.0.0.1:0"], "models": str(tmp_path)}
    config = CloudConfig.model_validate({"serve": serve, "models": {"m": {"buckets": configured}}})
    served = load_model(find_models(config)[0], config, asked=LoadSettings(max_batch=asked))
    assert isinstance(served, CloudModel)
    assert (served.settings.buckets, served.settings.max_batch) == (buckets, asked)
    x = np.ones((1, 8), np.float32)
    assert CloudService([served]).infer(InferRequest("m", {"x": x}), Call()).outputs["scores"].shape == (1, 3)

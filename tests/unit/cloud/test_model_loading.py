"""From a folder to a served model: prepared for every batch before it is there, and never an end of the service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from upwell.cloud import loading
from upwell.cloud.config import CloudConfig
from upwell.cloud.engines.base import Engine, ModelSettings
from upwell.cloud.engines.buckets import buckets_for
from upwell.cloud.engines.fake import FakeEngine
from upwell.cloud.loading import BrokenModel, ServedModel, find_models, load_model
from upwell.shared.oip.dataplane import Call
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
) -> ServedModel | BrokenModel:
    (root / "m" / "1").mkdir(parents=True)
    (root / "m" / "1" / "model.onnx").write_bytes(b"\x08\x07")
    monkeypatch.setattr(loading, "engine_type", lambda _: Kind(make))
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
    assert isinstance(served, ServedModel)
    assert isinstance(served.engine, PreparedEngine)
    assert tuple(served.engine.warm) == served.engine.buckets == buckets
    listed = ", ".join(map(str, buckets))
    assert caplog.messages == [f"model m version 1: preparing it for batches of {listed} rows"]
    for rows in range(1, 20):
        x = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
        np.testing.assert_array_equal(served.batcher.run({"x": x}, Call()).outputs["y"], x * 2)
    assert {len(batch["x"]) for batch in served.engine.batches} <= set(buckets)


def test_preparing_that_takes_long_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loading, "_LONG_S", 0.0)
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

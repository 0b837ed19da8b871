"""Drift detection in the background: rows wait in a short queue, one thread counts them, a file survives restarts."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from upwell.edge.models.edge_model import EdgeModel, ModelSource
from upwell.edge.models.row_measures import measured, picture_of
from upwell.edge.request.request import RequestRecord
from upwell.shared.files import StateFile
from upwell.shared.platform.background_thread import BackgroundThread
from upwell.shared.routing.drift.drift_reference import DriftReference
from upwell.shared.routing.drift.model_drift import DriftReport, ModelDrift
from upwell.shared.routing.request_tags import tag_key
from upwell.shared.tensors import Array

FILE_NAME = "drift.json"
"""The file with the counts, in the agent's `state_dir`."""
ROWS_PER_S, BURST_ROWS = 20.0, 1000.0
"""Limits the rows counted per model; chosen by time, not by content, so that the test stays valid."""

MAX_BYTES = 8 << 20
_MOST_WAITING = 1024
_MOST_WAITING_BYTES = 32 << 20
_MOST_SOURCES = 1000
_SAVE_AFTER_S = 5.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Waiting:
    """A row waiting to be counted; an audit if `disagreed` is known."""

    model: str
    at_unix_s: float
    edge: EdgeModel | None = None
    outputs: Mapping[str, Array] | None = None
    picture: bytes | Array | None = None
    source: str = ""
    disagreed: bool | None = None
    size_bytes: int = 0


@dataclass(frozen=True)
class _Watched:
    """The counts of the model loaded from `source`; `key` identifies the model and its reference."""

    source: ModelSource
    key: str
    drift: ModelDrift


class DriftWatch:
    """Compares rows with the reference in the model's bundle, if it has one. Thread-safe.

    `tell` is called with the names of the drifted models whenever they change. Only counts are stored, in the file at
    `path`; no caller waits for it, and a full queue drops rows.
    """

    def __init__(self, path: Path, tell: Callable[[frozenset[str]], None]) -> None:
        self._file = StateFile(path, "the drift counts", "they start over", MAX_BYTES)
        self._tell = tell
        self._queue: deque[_Waiting] = deque()
        self._queued_bytes = 0
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._models: dict[str, _Watched] = {}
        self._reports: dict[str, DriftReport] = {}
        self._tokens: dict[str, tuple[float, float]] = {}
        self._pictures: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._drifted: frozenset[str] = frozenset()
        self._saved: Mapping[str, Any] = self._file.read(_models_in, {})
        self._changed, self._saved_at_s = False, time.monotonic()
        self._closed = False
        self._thread: BackgroundThread | None = None

    def sees(self, edge: EdgeModel | None) -> bool:
        """Whether rows of this model are to be observed."""
        return edge is not None and edge.source.reference is not None

    def observe(self, done: RequestRecord) -> None:
        """Count the rows that the device answered. The policy must let them be kept."""
        edge, name = done.model.edge, done.model.name
        if edge is None or edge.source.reference is None or not self._has_token(name, done.parts.rows):
            return
        settings, facts = done.settings, done.signals.request_facts
        source = tag_key(facts.tags.get(settings.source.tag if settings.source else "pipeline", ""))
        for rows, run in done.parts.edge:
            for index, row in enumerate(rows):
                # The caller may change its arrays once it has its answer.
                outputs = {key: array.copy() for key, array in edge.signature.row(run.outputs, index).items()}
                picture = picture_of(edge.signature, done.inputs, row)
                size_bytes = sum(array.nbytes for array in outputs.values())
                if isinstance(picture, bytes):
                    size_bytes += len(picture)
                elif picture is not None:
                    picture = picture.copy()
                    size_bytes += picture.nbytes
                self._put(_Waiting(name, facts.wall_time_s, edge, outputs, picture, source, size_bytes=size_bytes))

    def audited(self, model: str, disagreed: bool) -> None:
        """Count an answer of the cloud to an audit."""
        self._put(_Waiting(model, time.time(), disagreed=disagreed))

    def serves(self, model: str, edge: EdgeModel) -> None:
        """Note the version that answers from now on: without a reference, what was found of the former one ends."""
        if edge.source.reference is None and self._thread is not None:
            self._put(_Waiting(model, time.time(), edge), is_sure=True)

    def reports(self) -> Mapping[str, DriftReport]:
        """The report of each model counted since the start."""
        with self._lock:
            return dict(self._reports)

    def close(self) -> None:
        """Count the waiting rows and write the file. Calling it twice is harmless."""
        with self._work:
            self._closed = True
            self._work.notify()
        if self._thread is not None:
            self._thread.join()

    def _has_token(self, model: str, rows: int) -> bool:
        with self._lock:
            now_s = time.monotonic()
            tokens, at_s = self._tokens.get(model, (BURST_ROWS, now_s))
            tokens = min(BURST_ROWS, tokens + (now_s - at_s) * ROWS_PER_S)
            has = tokens >= 1
            self._tokens[model] = (tokens - rows if has else tokens, now_s)
        return has

    def _put(self, waiting: _Waiting, *, is_sure: bool = False) -> None:
        with self._work:
            is_full = len(self._queue) >= _MOST_WAITING or self._queued_bytes >= _MOST_WAITING_BYTES
            if self._closed or (is_full and not is_sure):
                return
            self._queue.append(waiting)
            self._queued_bytes += waiting.size_bytes
            if self._thread is None:
                thread = BackgroundThread("drift", self._run, lambda: self._closed)
                self._thread = thread if thread.try_start() else None
            self._work.notify()

    def _run(self) -> None:
        while True:
            with self._work:
                if not self._queue and not self._closed:
                    self._work.wait(_SAVE_AFTER_S)
                taken = list(self._queue)
                self._queue.clear()
                self._queued_bytes = 0
                is_over = self._closed and not taken
            if taken:
                self._take(taken)
            if is_over or time.monotonic() - self._saved_at_s >= _SAVE_AFTER_S:
                self._save()
            if is_over:
                return

    def _take(self, taken: Sequence[_Waiting]) -> None:
        touched = {one.model for one in taken if self._count(one)}
        with self._lock:
            for name in touched:
                self._reports.pop(name, None)
                if name in self._models:
                    self._reports[name] = self._models[name].drift.report()
        self._changed = self._changed or bool(touched)
        self._tell_changes()

    def _count(self, one: _Waiting) -> bool:
        if one.disagreed is not None:
            if one.model in self._models:
                self._models[one.model].drift.audited(one.disagreed, one.at_unix_s)
            return one.model in self._models
        edge = one.edge
        if edge is not None and edge.source.reference is None:
            self._saved = {name: saved for name, saved in self._saved.items() if name != one.model}
            return self._models.pop(one.model, None) is not None
        if edge is None or one.outputs is None:
            return False
        drift = self._drift_of(one.model, edge)
        row = measured(edge.signature, edge.scorer, one.outputs, one.picture, drift.reference.measure)
        if one.picture is not None:
            row = replace(row, is_frozen=self._is_frozen((one.model, one.source), one.picture))
        drift.add(row, one.at_unix_s)
        return True

    def _drift_of(self, model: str, edge: EdgeModel) -> ModelDrift:
        """The counts of the model under this version's reference; they start over with another reference."""
        held = self._models.get(model)
        if held is not None and held.source is edge.source:
            return held.drift
        reference = edge.source.reference
        assert reference is not None  # noqa: S101  the caller has looked
        key = hashlib.sha256(f"{edge.digest} {reference.text()}".encode()).hexdigest()
        drift = held.drift if held is not None and held.key == key else self._restored(model, key, reference)
        self._models[model] = _Watched(edge.source, key, drift)
        return drift

    def _restored(self, model: str, key: str, reference: DriftReference) -> ModelDrift:
        drift, saved = ModelDrift(reference), self._saved.get(model, {})
        if saved.get("key") != key:
            return drift
        try:
            drift.restore(saved["state"])
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
            _log.warning("%s: the drift counts of %s cannot be read and start over", self._file.path, model)
            return ModelDrift(reference)
        return drift

    def _is_frozen(self, key: tuple[str, str], picture: bytes | Array) -> bool | None:
        digest = hashlib.sha256(picture if isinstance(picture, bytes) else picture.tobytes()).digest()
        before = self._pictures.pop(key, None)
        self._pictures[key] = digest
        if len(self._pictures) > _MOST_SOURCES:
            self._pictures.popitem(last=False)
        return None if before is None else before == digest

    def _tell_changes(self) -> None:
        drifted = frozenset(name for name, one in self._models.items() if one.drift.has_drifted)
        if drifted == self._drifted:
            return
        for name in sorted(drifted - self._drifted):
            report = self._reports[name]
            moved = ", ".join(f"{quantity} ({one.text})" for quantity, one in report.quantities.items() if one.moved)
            _log.warning("model %s: %s: %s", name, report.text, moved)
        for name in sorted(self._drifted - drifted):
            _log.info("model %s: no longer drifted from the reference", name)
        self._drifted = drifted
        self._tell(drifted)

    def _save(self) -> None:
        """Write the counts if they have changed. A failing disk is logged once."""
        self._saved_at_s = time.monotonic()
        if not self._changed:
            return
        self._changed = False
        known = {
            name: {"key": one.key, "state": one.drift.to_json(), "report": self._reports[name].document()}
            for name, one in self._models.items()
        }
        self._file.write({"version": 1, "models": {**self._saved, **known}})


def _models_in(document: Any) -> Mapping[str, Any]:
    models = document["models"]
    if not isinstance(models, dict) or not all(isinstance(one, dict) for one in models.values()):
        raise ValueError("expected `models`")
    return models

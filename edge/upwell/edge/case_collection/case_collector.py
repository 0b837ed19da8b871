"""Collecting cases in the background: which rows are stored, and how they get to disk."""

from __future__ import annotations

import math
import random
import threading
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from upwell.edge.case_collection.case_database import CaseStore, Kept
from upwell.edge.case_collection.collected_case import (
    CaseFacts,
    CaseSignature,
    CollectedCase,
    HardFacts,
    answer_bytes,
    class_label,
    request_bytes,
)
from upwell.edge.models.edge_model import EdgeModel
from upwell.edge.models.row_measures import row_vector
from upwell.edge.policy.router_service import RouterService
from upwell.edge.request.answer import Answer
from upwell.edge.request.request import RequestRecord, size_bytes
from upwell.edge.runtimes.base import runtime_name
from upwell.edge.spool.database_keeper import Keeper, KeptDatabase
from upwell.edge.spool.spooled_request import SpoolResult
from upwell.edge.uplink.cloud_reply import CloudReply
from upwell.shared.errors import InvalidRequest
from upwell.shared.routing.case_selection import EVALUATED, RowSigns, VectorReference, Why, inclusion, whys
from upwell.shared.routing.drift.drift_reference import DistanceFrom, VectorModel
from upwell.shared.routing.hardness import is_hard
from upwell.shared.routing.policy.settings import CollectSettings, HardSettings
from upwell.shared.routing.request_tags import tag_key
from upwell.shared.signature.processor import CandidatesByOutput
from upwell.shared.signature.signature import UplinkEncoding, in_rgb
from upwell.shared.tensors import Array

_MOST_WAITING_BYTES = 64 << 20
"""Memory for cases waiting to be written (bytes)."""

_MOST_TRACKS = 10_000
TRACK = "track"
"""The tag with the tracks of a request's rows, separated by commas."""

_LOSSLESS = UplinkEncoding("png")
_draw = random.random  # for sampling only, not for secrets


@dataclass(frozen=True)
class SentLater:
    """The rows of a request that are sent later: `missed_rows` in one spooled case, or `audited_row` as an audit.

    `audit_share` is the probability with which each of `easy_rows` could become the audited one.
    """

    missed_id: str = ""
    missed_rows: tuple[int, ...] = ()
    audit_id: str = ""
    audited_row: int = -1
    easy_rows: frozenset[int] = frozenset()
    audit_share: float = 0.0

    def awaits(self, row: int, has_rows: bool) -> tuple[str, int]:
        """The id under which the cloud will answer a row, and the row's index there; -1 for the whole answer."""
        if row == self.audited_row and self.audit_id:
            return self.audit_id, 0 if has_rows else -1
        if row in self.missed_rows and self.missed_id:
            return self.missed_id, self.missed_rows.index(row) if has_rows else -1
        return "", 0


@dataclass(frozen=True)
class _Row:
    """A row with each side's answer; empty if that side gave none."""

    number: int
    edge: Mapping[str, Array]
    candidates: CandidatesByOutput
    cloud: Mapping[str, Array]
    cloud_digest: str
    hardness: float
    threshold: float
    track: str


class CaseCollector:
    """Stores rows as cases, as the policy's `collect` says. Thread-safe; no caller waits for the disk or sees its
    errors.

    The file at `path` is created with the first case. `agent` is the name of this agent.
    """

    def __init__(self, path: Path, agent: str, router: RouterService) -> None:
        self._path = path
        self._agent = agent
        self._router = router
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._distances: dict[int, tuple[VectorModel, DistanceFrom]] = {}
        self._references: dict[str, tuple[str, VectorReference]] = {}
        self._tracks: OrderedDict[tuple[str, str, str], bool] = OrderedDict()
        """The most recent tracks, and whether a row of each was stored."""
        self._full: dict[tuple[str, str], str] = {}
        """Models and sources that reached their daily limit, with that day."""
        self._keeper: Keeper[CaseStore] | None = None
        self._closed = False
        if path.exists():  # its cases may expire
            self._opened()

    @property
    def problem(self) -> str:
        """Why no case can be stored now; empty if it can."""
        return "" if self._keeper is None else self._keeper.problem

    def collect(self, done: RequestRecord, answer: Answer, collect: CollectSettings, later: SentLater) -> None:
        """Store the rows of an answered request that `collect` selects. The policy must allow it."""
        source = done.signals.request_facts.tags.get(collect.source, "")
        known_as = tag_key(source)
        for row in self._rows(done):
            signs = self._signs(done, row, later, known_as)
            why = whys(collect, signs, _draw)
            if not why or self._is_spared(done, row, collect, why, known_as):
                continue
            facts = self._facts(done, answer, row, why, signs, collect, source)
            inputs = _copied(done.inputs_of((row.number,)))
            if done.model.entry_model is not None:
                inputs = in_rgb(done.model.entry_model.signature, inputs)
            self._keep(facts, inputs, row, collect, later.awaits(row.number, facts.signature.has_rows))

    def answered(self, result: SpoolResult) -> None:
        """Add the cloud's answer to the cases that await it."""
        if self._keeper is None:
            return

        def row_of(row: int) -> bytes:
            outputs = result.response().outputs
            rows = outputs if row < 0 else {name: array[row : row + 1] for name, array in outputs.items()}
            return answer_bytes(result.model, rows)

        facts = result.response().parameters
        digest = str(facts.get("upwell.cloud_digest") or facts.get("upwell.edge_digest") or "")
        self._keeper.submit(lambda store: store.answer(result.spool_id, digest, row_of), len(result.answer))

    def counts(self) -> Mapping[str, int]:
        """Counts of events since the start, by cause."""
        with self._lock:
            return Counter(self._counts)

    def held(self, timeout_s: float | None = None) -> tuple[int, int]:
        """The number of cases on disk, and their bytes. Raises as `Spool.held` does."""
        return (0, 0) if self._keeper is None else self._keeper.ask(lambda store: store.held(), timeout_s)

    def close(self) -> None:
        """Write the waiting cases and close the database. Calling it twice is harmless."""
        with self._lock:
            self._closed = True
        if self._keeper is not None:
            self._keeper.close()

    def _opened(self) -> Keeper[CaseStore] | None:
        with self._lock:
            if self._keeper is None and not self._closed:
                loss = "requests are still answered, but no cases are collected"
                self._keeper = Keeper(KeptDatabase("cases", self._path, CaseStore.open, self._count, loss))
            return self._keeper

    def _count(self, counts: Mapping[str, int]) -> None:
        with self._lock:
            self._counts.update(counts)

    def _rows(self, done: RequestRecord) -> Iterator[_Row]:
        """The rows that have an answer."""
        edge, hard = done.model.edge, done.settings.hard
        threshold = math.nan if done.second is None else done.second.threshold
        if hard is not None and math.isnan(threshold):  # no row was scored for a decision
            threshold = self._router.threshold(hard)
        said: dict[int, tuple[Mapping[str, Array], CandidatesByOutput, float]] = {}
        for rows, run in done.parts.edge:
            outputs = run.outputs
            measured = (math.nan,) * len(rows)
            if edge is not None and hard is not None and edge.scorer.can(hard):
                measured = edge.scorer.score(outputs, hard, len(rows), run.candidates)
            for index, row in enumerate(rows):
                possible = {name: found[index : index + 1] for name, found in (run.candidates or {}).items()}
                row_outputs = outputs if edge is None else edge.signature.row(outputs, index)
                said[row] = (row_outputs, possible, measured[index])
        clouds = {}
        for attempt in done.attempts:
            outcome = attempt.outcome
            if isinstance(outcome, CloudReply) and not outcome.is_degraded:
                for index, row in enumerate(attempt.rows):
                    outputs = outcome.response.outputs
                    clouds[row] = (outputs if edge is None else edge.signature.row(outputs, index), outcome.digest)
        tracks = done.signals.request_facts.tags.get(TRACK, "").split(",")
        for row in done.parts.all:
            if row in said or row in clouds:
                outputs, candidates, hardness = said.get(row, ({}, {}, math.nan))
                track = tracks[row] if len(tracks) == len(done.parts.all) else ""
                yield _Row(row, outputs, candidates, *clouds.get(row, ({}, "")), hardness, threshold, track)

    def _signs(self, done: RequestRecord, row: _Row, later: SentLater, source: str) -> RowSigns:
        edge, hard = done.model.edge, done.settings.hard
        is_scored = edge is not None and hard is not None and bool(row.edge) and edge.scorer.can(hard)
        return RowSigns(
            is_hard=is_scored and hard is not None and is_hard(row.hardness, hard.measure, row.threshold),
            from_threshold=abs(row.hardness - row.threshold),
            label="" if edge is None else class_label(CaseSignature.of(edge.signature), row.edge or row.cloud),
            novelty=self._novelty(done.model.name, edge, row),
            audit_share=later.audit_share if row.number in later.easy_rows else 0.0,
            is_audited=row.number == later.audited_row,
            is_new_track=bool(row.track) and self._note_track((done.model.name, source, tag_key(row.track))),
        )

    def _novelty(self, model: str, edge: EdgeModel | None, row: _Row) -> float:
        vector = None if edge is None or not row.edge else row_vector(edge.signature, edge.scorer, row.edge)
        if edge is None or vector is None:
            return math.nan
        if edge.source.reference is not None and edge.source.reference.vectors is not None:
            return self._distance(edge.source.reference.vectors)(vector)
        with self._lock:
            digest, reference = self._references.get(model, ("", VectorReference()))
            reference = reference if digest == edge.digest else VectorReference()
            distance = reference.distance(vector)
            self._references[model] = (edge.digest, reference.add(vector))
        return distance

    def _distance(self, vectors: VectorModel) -> DistanceFrom:
        """The distance from a bundle's reference; its covariance is inverted once."""
        with self._lock:
            if id(vectors) not in self._distances:
                self._distances = {id(vectors): (vectors, DistanceFrom(vectors))}
            return self._distances[id(vectors)][1]

    def _note_track(self, key: tuple[str, str, str]) -> bool:
        """Whether the track is new."""
        with self._lock:
            is_new = key not in self._tracks
            self._tracks.setdefault(key, False)
            self._tracks.move_to_end(key)
            if len(self._tracks) > _MOST_TRACKS:
                self._tracks.popitem(last=False)
        return is_new

    def _is_spared(
        self, done: RequestRecord, row: _Row, collect: CollectSettings, why: tuple[Why, ...], source: str
    ) -> bool:
        """Whether there is enough of its kind; never true for the evaluation set, whose probabilities would change."""
        if EVALUATED & set(why):
            return False
        model = done.model.name
        with self._lock:
            is_spared = self._full.get((model, source)) == _day()
            if row.track and collect.one_per_track:
                key = (model, source, tag_key(row.track))
                is_spared = is_spared or self._tracks.get(key, False)
                if key in self._tracks:
                    self._tracks[key] = True
        return is_spared

    def _facts(
        self, done: RequestRecord, answer: Answer, row: _Row, why: tuple[Why, ...], signs: RowSigns,
        collect: CollectSettings, source: str,
    ) -> CaseFacts:  # fmt: skip
        edge, hard = done.model.edge, done.settings.hard
        tags = dict(done.signals.request_facts.tags)
        if row.track:
            tags[TRACK] = row.track
        measures = (
            edge.scorer.score_all(row.edge, hard or HardSettings(), 1, row.candidates)[0]
            if edge is not None and row.edge
            else {}
        )
        return CaseFacts(
            id=uuid.uuid4().hex,
            agent=self._agent,
            model=done.model.name,
            source=source,
            tags=tags,
            request_id=done.id,
            row=row.number,
            created_unix_s=done.signals.request_facts.wall_time_s,
            why=why,
            inclusion=inclusion(collect, signs) if EVALUATED & set(why) else 0.0,
            sample=collect.sample,
            is_hard=signs.is_hard,
            hardness=_finite(row.hardness),
            measures=measures,
            novelty=_finite(signs.novelty),
            hard=None if hard is None else _hard_facts(hard, row.threshold),
            route=str(answer.routes[row.number]),
            reason=str(answer.reason),
            edge_digest=(done.edge_digest or edge.digest) if edge is not None else "",
            edge_runtime=runtime_name(edge.runtime) if edge is not None else "",
            cloud_digest=row.cloud_digest,
            signature=_signature(edge, row, done),
        )

    def _keep(
        self, facts: CaseFacts, inputs: Mapping[str, Array], row: _Row, collect: CollectSettings,
        awaits: tuple[str, int],
    ) -> None:  # fmt: skip
        keeper = self._opened()
        if keeper is None or keeper.waiting_bytes > _MOST_WAITING_BYTES:
            self._count({"refused_busy": 1})
            return
        edge, cloud = _copied(row.edge), _copied(row.cloud)

        def add(store: CaseStore) -> Kept:
            sent = {name: _encoded(array, facts.signature, name) for name, array in inputs.items()}
            case = CollectedCase(
                facts,
                request_bytes(facts.model, sent),
                answer_bytes(facts.model, edge),
                answer_bytes(facts.model, cloud),
            )
            return store.add(case, collect, keeper.now_s(), awaits)

        done = keeper.submit(add, size_bytes(inputs) + size_bytes(edge) + size_bytes(cloud))
        done.add_done_callback(lambda ended: self._note_kept(ended, facts))

    def _note_kept(self, ended: Future[Kept], facts: CaseFacts) -> None:
        error = ended.exception()
        if isinstance(error, InvalidRequest):
            self._count({"refused_unfit": 1})
        elif error is not None:
            self._count({"failed_writes": 1})
        elif ended.result() == "refused_day":
            with self._lock:
                if len(self._full) >= _MOST_TRACKS:
                    self._full.clear()
                self._full[facts.model, tag_key(facts.source)] = _day()


def _day() -> str:
    return datetime.fromtimestamp(time.time(), timezone.utc).date().isoformat()


def _signature(edge: EdgeModel | None, row: _Row, done: RequestRecord) -> CaseSignature:
    """The signature of the model on the device; without one, plain tensors by their names in request and answer."""
    if edge is not None:
        return CaseSignature.of(edge.signature)
    return CaseSignature.model_validate(
        {
            "has_rows": False,
            "inputs": [{"name": name, "kind": "tensor"} for name in done.inputs],
            "outputs": [{"name": name, "kind": "tensor"} for name in row.cloud],
        }
    )


def _hard_facts(hard: HardSettings, threshold: float) -> HardFacts:
    return HardFacts(
        measure=hard.measure,
        threshold=_finite(threshold),
        temperature=hard.temperature,
        bias=hard.bias,
        support=hard.support,
        hidden_slope=hard.hidden_slope,
        cloud_share=_finite(hard.cloud_share),
        max_risk=_finite(hard.max_risk),
        misfit=hard.misfit,
    )


def _encoded(array: Array, signature: CaseSignature, name: str) -> Array:
    """Pixels of a picture [1, height, width, 1 or 3] as PNG; anything else unchanged."""
    is_picture = any(one.name == name and one.kind == "image" for one in signature.inputs)
    if not is_picture or array.dtype != np.uint8 or array.ndim != 4:
        return array
    from upwell.shared.signature.picture_codec import encode  # with Pillow, for models of pictures alone

    encoded = encode(array[0], _LOSSLESS)
    if encoded is None:
        return array
    picture = np.empty(1, dtype=np.object_)
    picture[0] = encoded
    return picture


def _copied(arrays: Mapping[str, Array]) -> Mapping[str, Array]:
    """The caller may change its arrays once it has its answer."""
    return {name: array.copy() for name, array in arrays.items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

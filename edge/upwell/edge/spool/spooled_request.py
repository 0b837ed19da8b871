"""The spool's values: cases, the cloud's answers to them, limits and counts."""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, TypeAlias

from upwell.shared.errors import UpwellError
from upwell.shared.oip.codec.converters import (
    parse_infer_request,
    parse_infer_response,
    serialize_infer_request,
    serialize_infer_response,
)
from upwell.shared.oip.dataplane import InferRequest, InferResponse
from upwell.shared.tensors import Array

Kind: TypeAlias = Literal["spool", "audit"]
State: TypeAlias = Literal["waiting", "done", "poisoned"]

SPOOL_ID = "upwell.spool_id"
"""Parameter with the case's id, in the answer of a spooled request and in the request sent later."""

OVERHEAD_BYTES = 1024
"""Disk space of a case beyond its tensors and tags (bytes)."""

READ_TIMEOUT_S = 2.0
"""How long metrics and reports wait for the disk; Prometheus gives up on a whole page after ten seconds."""


class SpoolUnavailable(UpwellError):
    """The disk is full, read-only or gone, or the spool is closed."""


class Later(UpwellError):
    """Nothing of a case's model can be sent for now, though neither the case nor the link is at fault."""


@dataclass(frozen=True)
class Case:
    """A request to be sent later. `inputs` are as sent to the cloud; `edge` is the device's answer, None without one.

    `reason` is the reason code for spooling the case.
    """

    kind: Kind
    model: str
    cloud_model: str
    request_id: str
    inputs: Mapping[str, Array]
    reason: str
    tags: Mapping[str, str] = field(default_factory=dict)
    edge: InferResponse | None = None
    owner: str = ""
    """The caller (`Caller.key`); empty for an unnamed caller or the program itself."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """The id under which it is stored and answered."""


@dataclass(frozen=True)
class Stored:
    """A case as stored on disk. Times ending in `wall_s` are Unix time, `kept_s` and `next_s` are `ForwardClock`'s."""

    id: str
    kind: Kind
    model: str
    cloud_model: str
    request_id: str
    tags: Mapping[str, str]
    reason: str
    created_wall_s: float
    kept_s: float
    next_s: float
    attempts: int
    edge_answer_digest: str
    request: bytes
    edge_answer: bytes
    owner: str = ""

    @classmethod
    def of(cls, case: Case, id: str, wall_s: float) -> Stored:
        """The case under its id, to be stored with `at`. Raises `InvalidRequest` if no message can carry it."""
        request = InferRequest(case.cloud_model, case.inputs, id=case.request_id, parameters={SPOOL_ID: id})
        digest, edge = "", b""
        if case.edge is not None:
            # Facts such as times differ from run to run, so the digest covers only the outputs.
            outputs = serialize_infer_response(InferResponse(case.model, case.edge.outputs))
            digest = f"sha256:{hashlib.sha256(outputs).hexdigest()}"
            edge = serialize_infer_response(case.edge) if case.kind == "audit" else b""
        return cls(
            id, case.kind, case.model, case.cloud_model, case.request_id, MappingProxyType(dict(case.tags)),
            str(case.reason), wall_s, 0.0, 0.0, 0, digest, serialize_infer_request(request), edge, case.owner,
        )  # fmt: skip

    def at(self, now_s: float) -> Stored:
        """The case stored at that time, and due since then."""
        return replace(self, kept_s=now_s, next_s=now_s)

    @property
    def tags_text(self) -> str:
        """Its tags as stored, in ASCII."""
        return json.dumps(dict(self.tags))

    @property
    def size_bytes(self) -> int:
        """Its size on disk."""
        return len(self.request) + len(self.edge_answer) + len(self.tags_text) + OVERHEAD_BYTES

    def infer_request(self) -> InferRequest:
        """The request to send. Raises `InvalidRequest` if the stored data cannot be read."""
        return parse_infer_request(self.request)


@dataclass(frozen=True)
class SpoolResult:
    """The cloud's answer to a spooled case. `sequence` increases with each result; `answer` is a serialized
    response."""

    sequence: int
    spool_id: str
    request_id: str
    kind: Kind
    model: str
    cloud_model: str
    tags: Mapping[str, str]
    reason: str
    created_wall_s: float
    answered_wall_s: float
    edge_answer_digest: str
    answer: bytes
    edge_answer: bytes
    owner: str = ""

    def response(self) -> InferResponse:
        """The cloud's answer."""
        return parse_infer_response(self.answer)

    def edge_response(self) -> InferResponse | None:
        """The device's answer to the same case; None unless it is an audit."""
        return parse_infer_response(self.edge_answer) if self.edge_answer else None


@dataclass(frozen=True)
class SpoolLimits:
    """Limits on storing and sending cases.

    `max_bytes` limits the waiting (or set aside) cases, `max_result_bytes` the results, `max_age_s` both. At most
    `rate_per_s` cases are sent per second, each within `send_timeout_s`. A case that failed `attempts` times while
    others succeeded is set aside. Pauses after failures grow from `first_pause_s` to `longest_pause_s`.
    """

    max_bytes: int = 256 << 20
    max_result_bytes: int = 64 << 20
    max_age_s: float = 7 * 86_400.0
    rate_per_s: float = 20.0
    send_timeout_s: float = 30.0
    attempts: int = 5
    first_pause_s: float = 1.0
    longest_pause_s: float = 300.0


@dataclass(frozen=True)
class SpoolCounts:
    """Counts of events since the start, by cause. A case may be counted more than once."""

    kept: int = 0
    """Cases written."""
    unnamed: int = 0
    """Cases written too late to give the caller their id before its deadline."""
    refused_busy: int = 0
    """Cases not accepted because too many were waiting for the disk."""
    refused_large: int = 0
    """Cases not accepted because they exceed the limit, and audits without room."""
    refused_unfit: int = 0
    """Cases not accepted because the protocol cannot carry them."""
    failed_writes: int = 0
    """Cases lost because the disk was full, read-only or broken."""
    dropped_full: int = 0
    """Waiting cases dropped, oldest first, to make room."""
    dropped_old: int = 0
    """Waiting cases and results dropped because they were too old."""
    denied: int = 0
    """Cases dropped because the policy no longer lets them leave the device."""
    answered: int = 0
    """Cases that the cloud answered."""
    unavailable: int = 0
    """Failed attempts that are no case's fault: no link, no room, no access."""
    errors: int = 0
    """Failed attempts that may be the case's fault."""
    poisoned: int = 0
    """Cases set aside."""
    dropped_results: int = 0
    """Results dropped, oldest first, to make room."""
    delivered: int = 0
    """Results delivered to sinks."""
    failed_deliveries: int = 0
    """Failed attempts to deliver results to a sink."""
    damaged: int = 0
    """Unreadable databases that were set aside and replaced by a new one."""


@dataclass(frozen=True)
class SpoolHeld:
    """The contents of the spool on disk."""

    waiting: int = 0
    poisoned: int = 0
    results: int = 0
    size_bytes: int = 0
    oldest_waiting_s: float = 0.0


class SpoolTally:
    """The counters, added to from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, counts: Mapping[str, int]) -> None:
        """Add to the counters of these names."""
        with self._lock:
            self._counts.update(counts)

    @property
    def counts(self) -> SpoolCounts:
        """The present counts."""
        with self._lock:
            return SpoolCounts(**self._counts)

"""What is kept: cases, the cloud's answers to them, and how much of both."""

from __future__ import annotations

import hashlib
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
"""Parameter of an answer whose case was kept, and of the request that goes up later: one id, one case."""

OVERHEAD_BYTES = 1024
"""What one case takes on disk beside its tensors."""


class SpoolUnavailable(UpwellError):
    """The disk is full, read-only or gone, or the spool is closed."""


class Later(UpwellError):
    """Nothing of a case's model can go up for now, through no fault of the case or the link."""


@dataclass(frozen=True)
class Case:
    """A request to be sent later. `inputs` are as they would go up; `edge` is the device's answer, None without one.

    `reason` is a reason code: why the case is kept.
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
    """Who asked (`Caller.key`); empty where the server knows nobody by name, or the program itself asked."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """What it is kept under, and what the answer to it will name."""


@dataclass(frozen=True)
class Stored:
    """A case as it lies on disk. Times ending in `wall_s` are Unix time, `kept_s` and `next_s` are `SpoolClock`'s."""

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
        """The case under its id, to be kept `at` some instant. Raises `InvalidRequest` if no message can carry it."""
        request = InferRequest(case.cloud_model, case.inputs, id=case.request_id, parameters={SPOOL_ID: id})
        digest, edge = "", b""
        if case.edge is not None:
            # Facts such as times differ from run to run, so the digest is of the outputs alone.
            outputs = serialize_infer_response(InferResponse(case.model, case.edge.outputs))
            digest = f"sha256:{hashlib.sha256(outputs).hexdigest()}"
            edge = serialize_infer_response(case.edge) if case.kind == "audit" else b""
        return cls(
            id, case.kind, case.model, case.cloud_model, case.request_id, MappingProxyType(dict(case.tags)),
            str(case.reason), wall_s, 0.0, 0.0, 0, digest, serialize_infer_request(request), edge, case.owner,
        )  # fmt: skip

    def at(self, now_s: float) -> Stored:
        """The case as kept at that instant, and due since."""
        return replace(self, kept_s=now_s, next_s=now_s)

    @property
    def size_bytes(self) -> int:
        """What it takes on disk."""
        return len(self.request) + len(self.edge_answer) + OVERHEAD_BYTES

    def infer_request(self) -> InferRequest:
        """The request to send. Raises `InvalidRequest` where what lies on disk cannot be read."""
        return parse_infer_request(self.request)


@dataclass(frozen=True)
class SpoolResult:
    """The cloud's answer to a kept case. `sequence` rises from result to result; `answer` is a serialized response."""

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
    """How much is kept and how hard it is tried.

    `max_bytes` bounds what waits (or was set aside), `max_result_bytes` the results, `max_age_s` both. At most
    `rate_per_s` cases go up per second, each call taking at most `send_timeout_s`. A case that failed `attempts` times
    while others passed is set aside. Pauses after failures grow from `first_pause_s` to `longest_pause_s`.
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
    """What has happened since the start, by cause. A case may count more than once on its way."""

    kept: int = 0
    """Cases that were written."""
    unnamed: int = 0
    """Of these, cases whose caller could not be told the id, since the disk was slower than its deadline."""
    refused_busy: int = 0
    """Cases not taken since too many waited for the disk."""
    refused_large: int = 0
    """Cases not taken since they are larger than the bound, or audits for which there was no room."""
    refused_unfit: int = 0
    """Cases not taken since the protocol cannot carry them."""
    failed_writes: int = 0
    """Cases lost because the disk was full, read-only or broken."""
    dropped_full: int = 0
    """Waiting cases dropped, oldest first, to make room."""
    dropped_old: int = 0
    """Waiting cases and results dropped since they were too old."""
    denied: int = 0
    """Cases dropped because the policy no longer lets them leave the device."""
    answered: int = 0
    """Cases that the cloud answered."""
    unavailable: int = 0
    """Attempts that no case is to blame for: no link, no room, no access."""
    errors: int = 0
    """Attempts that ended in an error that may be the case's own."""
    poisoned: int = 0
    """Cases set aside."""
    dropped_results: int = 0
    """Results dropped, oldest first, to make room."""
    delivered: int = 0
    """Results handed to sinks."""
    failed_deliveries: int = 0
    """Attempts to hand results to a sink that failed."""
    damaged: int = 0
    """Databases that could not be read, were moved aside and begun anew."""


@dataclass(frozen=True)
class SpoolHeld:
    """What lies on disk now."""

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
        """As they are now."""
        with self._lock:
            return SpoolCounts(**self._counts)


class SpoolClock:
    """Seconds that never go backward and that no correction of the wall clock touches while the process runs.

    `now_s = start_s + (monotonic_s − monotonic at the start)` where `start_s` is the wall clock's time at the start, or
    the latest instant on disk where the wall clock has been set back before it. Age and pauses are told by it: a device
    without a battery wakes in 1970, and nothing may be dropped as old, or wait for decades, when it learns the time.
    """

    def __init__(self, latest_s: float, wall_s: float, monotonic_s: float) -> None:
        self._offset_s = max(latest_s, wall_s) - monotonic_s

    def at(self, monotonic_s: float) -> float:
        """This clock at an instant of the monotonic one."""
        return self._offset_s + monotonic_s

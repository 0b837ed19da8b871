"""One request to the agent: its inputs and rows, the signals for the router, its context and its record."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from upwell.edge.admission.request_admission import Admission
from upwell.edge.models.edge_model import EdgeModel, EdgeRun, ServedModel
from upwell.edge.policy.router_service import RouterService
from upwell.edge.uplink.cloud_reply import CloudReply
from upwell.shared.errors import InvalidRequest
from upwell.shared.routing.decide.router_state import Decision, Signals
from upwell.shared.routing.estimators.preparation_times import LEAST_PIXELS, EncodedPictures
from upwell.shared.routing.flow.cloud_attempt import CloudAttempt
from upwell.shared.routing.flow.flow_actions import CloudFailure
from upwell.shared.routing.policy.compiled_policy import RequestFacts
from upwell.shared.routing.policy.settings import Settings
from upwell.shared.routing.reasons import Reason
from upwell.shared.routing.request_tags import NO_TAGS, checked_tags, is_unicode
from upwell.shared.signature.picture_headers import encoded_forms, encoded_pixels
from upwell.shared.signature.signature import Signature
from upwell.shared.signature.uplink_pictures import (
    NO_RESIZES,
    Resizes,
    encode_for_uplink,
    saved_bytes,
    shrink_for_uplink,
)
from upwell.shared.telemetry.log_context import note_trace
from upwell.shared.telemetry.tracing import Place, Trace, Tracer
from upwell.shared.tensors import Array
from upwell.shared.value_classes import value_class

if TYPE_CHECKING:  # imported for agents with a cloud
    from upwell.edge.uplink.uplink import Uplink
    from upwell.shared.oip.introspection import Seen


class RequestMetrics(Protocol):
    """Counts the bytes sent to the cloud."""

    def sent(self, model: str, size_bytes: int) -> None:
        """Count a message of this size, sent for this model."""


@value_class
class RequestContext:
    """The context shared by all requests; a traced request has its own copy.

    `uplinks` are the ways to the cloud by network interface, empty without a cloud. `agent` is the name that answers
    carry. `seen` is how models in the cloud resize pictures, as far as known, by the model's name here. `trace` is set
    if `tracer` records the request; `traceparent` is what the cloud is sent if it is not recorded.
    """

    router: RouterService
    uplinks: Mapping[str, Uplink]
    metrics: RequestMetrics
    admission: Admission
    tracer: Tracer | None = None
    agent: str = ""
    seen: Mapping[str, Seen] = field(default_factory=dict)
    trace: Trace | None = None
    traceparent: str = ""

    def placed(self, traceparent: str, arrived_s: float) -> RequestContext:
        """The context for a request whose caller sent `traceparent`; without a tracer it is passed on unchanged."""
        if self.tracer is None:
            place = Place.parse(traceparent)
            return self if place is None else replace(self, traceparent=str(place))
        trace = self.tracer.begin(traceparent, arrived_s)
        if trace is None:
            return replace(self, traceparent=str(Place.parse(traceparent) or Place.unrecorded()))
        note_trace(trace.root.trace_id)
        return replace(self, trace=trace)


@value_class
class Request:
    """A caller's request. `inputs` maps the signature's names to arrays with rows; times are monotonic.

    `deadline_s` is infinite and `id` empty if the caller gave none; `traceparent` is its place in a trace.
    """

    model: str
    inputs: Mapping[str, Array]
    arrived_s: float
    deadline_s: float = math.inf
    tags: Mapping[str, str] = field(default_factory=lambda: NO_TAGS)
    id: str = ""
    traceparent: str = ""


_IDS_AT_ONCE = 64
"""Number of request ids made in one batch."""


class Ids:
    """Random UUIDs, made in batches, since formatting one takes as long as a whole decision.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._ready: list[str] = []

    def new(self) -> str:
        """A new id."""
        try:
            return self._ready.pop()
        except IndexError:
            id, *self._ready = [f"{random.getrandbits(128):032x}" for _ in range(_IDS_AT_ONCE)]
            return id


Replies: TypeAlias = Sequence[tuple[tuple[int, ...], CloudReply]]
"""The cloud's answers, each with the rows of the request that it covers."""


_ONE = (0,)


class RowParts:
    """The device's answers so far, in parts of one or several rows."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.all = _ONE if rows == 1 else tuple(range(rows))
        self.edge: list[tuple[tuple[int, ...], EdgeRun]] = []

    def merged(self, replies: Replies, signature: Signature | None) -> Mapping[str, Array]:
        """The cloud's rows, and the edge's for the others. Without a `signature` the cloud has all rows."""
        if not replies and len(self.edge) == 1:
            return self.edge[0][1].outputs
        lifted = {row for rows, _ in replies for row in rows}
        parts: list[tuple[Sequence[int], Mapping[str, Array]]] = [(rows, r.response.outputs) for rows, r in replies]
        if signature is None:
            return parts[0][1]
        for rows, run in self.edge:
            outputs = run.outputs
            kept = [index for index, row in enumerate(rows) if row not in lifted]
            if len(kept) == self.rows:
                return outputs
            if kept:
                parts.append(([rows[index] for index in kept], {name: a[kept] for name, a in outputs.items()}))
        return signature.merge_rows(parts, self.rows)


def size_bytes(inputs: Mapping[str, Array]) -> int:
    """The size of a request whose signature only the cloud knows. Raises `InvalidRequest`."""
    try:
        return sum(
            sum(len(item) + 4 for item in array.flat) if array.dtype == np.object_ else array.nbytes
            for array in inputs.values()
        )
    except TypeError:
        raise InvalidRequest("an object array contains something other than bytes") from None


def check_strings(**arguments: object) -> None:
    """Raises `InvalidRequest` for an argument that is no string, or one that no message can hold."""
    for name, value in arguments.items():
        if not isinstance(value, str):
            raise InvalidRequest(f"{name}: expected a string, got {type(value).__name__}")
        if not is_unicode(value):
            raise InvalidRequest(f"{name}: expected Unicode text, got {value!r}")


def checked_deadline(deadline_s: object) -> float:
    """The deadline as a float (seconds). Raises `InvalidRequest` for what is neither Python's nor numpy's number."""
    if isinstance(deadline_s, bool) or not isinstance(deadline_s, Real):
        raise InvalidRequest(f"deadline_s: expected a number of seconds, got {type(deadline_s).__name__}")
    try:
        return float(deadline_s)
    except OverflowError:  # a whole number of more than 300 digits
        raise InvalidRequest("deadline_s: expected a number of seconds that a float can hold") from None


_CHANNELS = (1, 3)


def as_arrays(inputs: Mapping[str, Array | bytes], model: ServedModel) -> dict[str, Array]:
    """The inputs as arrays with rows. Raises `InvalidRequest` for anything but arrays and bytes by names."""
    entry_model = model.entry_model
    pictures = entry_model.pictures if entry_model else ()
    arrays: dict[str, Array] = {}
    try:
        items = inputs.items()
    except AttributeError:
        raise InvalidRequest(f"inputs: expected arrays by name, got {type(inputs).__name__}") from None
    for name, value in items:
        if not isinstance(name, str) or not is_unicode(name):
            raise InvalidRequest(f"inputs: expected Unicode text as names, got {name!r}")
        if isinstance(value, np.ndarray) and name not in pictures:
            arrays[name] = value
        else:
            arrays[name] = _array(name, value, name in pictures)
    return arrays


def _array(name: str, value: object, is_picture: bool) -> Array:
    if isinstance(value, np.ndarray):
        return _with_rows(value) if is_picture and value.dtype == np.uint8 else value
    if isinstance(value, (bytes, bytearray, memoryview)):
        picture = np.empty(1, dtype=np.object_)
        picture[0] = bytes(value)
        return picture
    raise InvalidRequest(f"input {name!r}: expected a numpy array or bytes, got {type(value).__name__}")


def _with_rows(pixels: Array) -> Array:
    """Pixels as [rows, height, width, channels]; with three dimensions, the last 1 or 3, it is one picture with
    channels."""
    if pixels.ndim == 2:
        return pixels[None, :, :, None]
    if pixels.ndim == 3:
        return pixels[None] if pixels.shape[2] in _CHANNELS else pixels[..., None]
    return pixels


def as_tags(tags: Mapping[str, str]) -> Mapping[str, str]:
    """A copy of the tags as rules see them: `checked_tags`. Raises `InvalidRequest`."""
    try:
        return checked_tags(tags)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def pictures_of(model: EdgeModel, inputs: Mapping[str, Array]) -> EncodedPictures | None:
    """The encoded pictures among a model's inputs, if they are large enough for their preparation to count."""
    arrays = [inputs[name] for name in model.pictures if name in inputs]
    pixels = encoded_pixels(arrays)
    return EncodedPictures(encoded_forms(arrays), pixels) if pixels >= LEAST_PIXELS else None


def signals_of(
    context: RequestContext, model: ServedModel, request: Request
) -> tuple[Signals, Mapping[str, Array], Resizes]:
    """The signals, the inputs as the whole model in the cloud takes them, and how it resizes their pictures.

    Pictures are encoded before the decision, which depends on the bytes really sent. Those for which model.yaml names
    no encoding are shrunk only when they go up, as most requests stay here. Raises `InvalidRequest` for wrong inputs.
    """
    edge, entry_model, inputs = model.edge, model.entry_model, request.inputs
    rows = entry_model.signature.check_inputs(inputs) if entry_model else 1
    has_cloud = bool(model.cloud_model) and bool(context.uplinks)
    resizes, sent_inputs = NO_RESIZES, inputs
    if has_cloud:
        seen = context.seen.get(model.name)
        resizes = NO_RESIZES if seen is None else seen.resizes
        if entry_model:
            sent_inputs = encode_for_uplink(entry_model.signature, inputs, resizes)
    sizes: tuple[int, ...]
    more: dict[str, Any] = {}
    if edge and edge.exits:
        sizes = (edge.exit_row_bytes,) * rows
        if edge.pictures and (pictures := pictures_of(edge, inputs)) is not None:
            more["pictures"] = pictures
    elif entry_model is None:
        sizes = (size_bytes(inputs),)
    elif (row_bytes := entry_model.signature.row_bytes) is not None:
        sizes = row_bytes * rows  # of a single row it is the same object
    else:
        sizes = entry_model.signature.row_sizes_bytes(sent_inputs)
        if entry_model.pictures and (pictures := pictures_of(entry_model, inputs)) is not None:
            more["pictures"] = pictures
        saved = saved_bytes(entry_model.signature, sent_inputs, resizes) if resizes else ()
        if saved:
            more["up_sizes_bytes"] = tuple(size - less for size, less in zip(sizes, saved, strict=True))
    hards = context.router.hards(model.name)
    has_scores = bool(hards) and edge is not None and edge.can_score(hards)
    ahead = entry_model.scheduler.queue.ahead if entry_model else 0
    facts = RequestFacts(model.name, request.tags, max(sizes), time.time())
    signals = Signals(
        facts, sizes, request.arrived_s, request.deadline_s, edge is not None, has_cloud, has_scores, ahead
    )
    if more:
        signals = replace(signals, **more)
    if (model.heads and bool(context.uplinks)) or (edge and edge.exits):
        heads = () if not context.uplinks else (head for head in model.heads if head.takes(rows))
        routes = tuple(head.split_route for head in heads)
        signals = replace(signals, split_routes=routes, exits=edge is not None and bool(edge.exits))
    return signals, sent_inputs, resizes


@value_class
class RequestRecord:
    """The record of one request.

    `first` is the decision before the device ran, `second` the one after it, None if there was none. `inputs` are the
    caller's, `sent_inputs` those for the cloud: as model.yaml sends them, or what an exit gave for the tail; `resizes`
    shrink their pictures before they go. `hardness` is by row, for the rows that the device scored; `edge_digest` names
    the version that ran on the device; `was_refused` says that its accelerator refused the shape of a run.
    """

    model: ServedModel
    id: str
    signals: Signals
    inputs: Mapping[str, Array]
    sent_inputs: Mapping[str, Array]
    first: Decision
    second: Decision | None
    hardness: Mapping[int, float]
    parts: RowParts
    attempts: Sequence[CloudAttempt]
    edge_s: float | None
    edge_digest: str = ""
    resizes: Resizes = field(default_factory=lambda: NO_RESIZES)
    was_refused: bool = False

    @property
    def settings(self) -> Settings:
        """The policy's settings for the request."""
        return self.first.verdict.settings

    @property
    def replies(self) -> Mapping[int, CloudReply]:
        """The rows that the cloud answered, each with its reply."""
        return {row: a.outcome for a in self.attempts if isinstance(a.outcome, CloudReply) for row in a.rows}

    @property
    def missed(self) -> Mapping[int, Reason]:
        """The rows that wanted the cloud but got no answer from it, with the reason."""
        replies = self.replies  # a row that was kept may have gone up in the end
        kept = {
            row: decision.obstacle
            for decision in (self.first, self.second)
            if decision is not None and decision.obstacle is not None
            for row in decision.kept_rows
            if row not in replies
        }
        failed = {row: a.outcome.reason for a in self.attempts if isinstance(a.outcome, CloudFailure) for row in a.rows}
        return {**kept, **failed}

    def inputs_of(self, rows: tuple[int, ...]) -> Mapping[str, Array]:
        """The caller's inputs of these rows."""
        return self._of_rows(self.inputs, rows)

    def message_inputs(self, rows: tuple[int, ...]) -> Mapping[str, Array]:
        """The inputs of these rows as sent to the cloud."""
        entry_model, inputs = self.model.entry_model, self._of_rows(self.sent_inputs, rows)
        return inputs if entry_model is None else shrink_for_uplink(entry_model.signature, inputs, self.resizes)

    def _of_rows(self, inputs: Mapping[str, Array], rows: tuple[int, ...]) -> Mapping[str, Array]:
        if len(rows) == self.parts.rows or self.model.edge is None:
            return inputs
        return self.model.edge.signature.select_rows(inputs, rows)

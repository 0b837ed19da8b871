"""The Open Inference Protocol over a `Dataplane`, for agent and cloud service: single calls, and what streams share.

The handlers take and return serialized messages: an unreadable one is INVALID_ARGUMENT, where generated handlers would
answer INTERNAL before any code of ours runs.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NoReturn, TypeAlias

import grpc

from upwell.shared.errors import InvalidRequest, Refused, UpwellError
from upwell.shared.oip.auth.caller import certificate_name, current_caller
from upwell.shared.oip.class_labels import infer_classified
from upwell.shared.oip.codec import converters
from upwell.shared.oip.codec.converters import parse_infer_request
from upwell.shared.oip.dataplane import Call, Dataplane, Flag, InferRequest, InferResponse
from upwell.shared.oip.error_statuses import INTERNAL, Status, note_error_answer, status_of
from upwell.shared.oip.retry_after import trailers
from upwell.shared.telemetry.log_context import note_request, request_id

TIMEOUT = "timeout"
"""Triton's parameter for a request's time limit, in microseconds."""

_NO_DEADLINE_S = 1e9

_log = logging.getLogger("upwell.shared.oip.grpc.server.servicer")


def call_of(context: grpc.ServicerContext) -> Call:
    """The circumstances of the call of `context`; call it in the thread that handles the call."""
    # Without a deadline gRPC reports its largest number.
    remaining_s = context.time_remaining()
    deadline_s = math.inf if remaining_s is None or remaining_s > _NO_DEADLINE_S else time.monotonic() + remaining_s
    cancelled = Flag()
    if not context.add_callback(cancelled.set):
        cancelled.set()
    traceparent = ""
    for key, value in context.invocation_metadata() or ():
        if key == "traceparent" and isinstance(value, str):
            traceparent = value
    return Call(deadline_s, cancelled, client_name(context), traceparent)


def client_name(context: grpc.ServicerContext) -> str:
    """The caller's name: by its token, else by its certificate, else by its address."""
    caller = current_caller()
    return (caller.name if caller is not None else "") or certificate_name(context) or context.peer()


def read_request(data: bytes) -> InferRequest:
    """Parse a `ModelInferRequest`; a missing ID is generated. Raises `InvalidRequest`."""
    request = parse_infer_request(data)
    if request.id:
        return request
    name = os.urandom(16).hex()
    return InferRequest(
        request.model, request.inputs, request.version, name, request.outputs, request.parameters, request.classes
    )


def infer(dataplane: Dataplane, request: InferRequest, call: Call) -> InferResponse:
    """Ask `dataplane`, until the deadline of `call` or of the request itself. Raises as `dataplane` does."""
    note_request(request.id, call.client, request.model, call.traceparent)
    if TIMEOUT in request.parameters:
        limit_s = timeout_s(request.parameters[TIMEOUT])
        if limit_s is not None:
            call = replace(call, deadline_s=min(call.deadline_s, time.monotonic() + limit_s))
    return infer_classified(dataplane, request, call)


def serialized(serialize: Callable[[InferResponse], bytes], response: InferResponse, most_bytes: int) -> bytes:
    """Serialize an answer. An answer that the protocol cannot carry is not the caller's fault.

    Raises `Refused` if it takes more than `most_bytes`, if possible before memory is taken for it: gRPC would make two
    more copies first, and end a whole stream.
    """
    _check_size(sum(array.nbytes for array in response.outputs.values() if not array.dtype.hasobject), most_bytes)
    try:
        answer = serialize(response)
    except UpwellError as error:
        raise RuntimeError("the answer cannot be serialized") from error
    _check_size(len(answer), most_bytes)
    return answer


def _check_size(size_bytes: int, most_bytes: int) -> None:
    if size_bytes > most_bytes:
        raise Refused(f"the answer takes {size_bytes} bytes; at most {most_bytes} are sent (`max_message`)")


def timeout_s(value: object) -> float | None:
    """The parameter `timeout` in seconds; None without one. Raises `InvalidRequest`."""
    if type(value) is not int or value < 0:
        raise InvalidRequest("the parameter 'timeout' must be a whole number of microseconds")
    # 0 means no timeout in Triton.
    return value / 1e6 if 0 < value < 2**63 else None


def failure(error: Exception) -> Status:
    """The status for a request that raised `error`. A bug is logged in full; a model's failure only by its kind, since
    the text, which the caller gets, may quote the request."""
    status = status_of(error)
    note_error_answer(status.code.name)
    if status is INTERNAL:
        _log.error("request %r failed: %s", request_id(), status.text, exc_info=error)
    elif status.code is grpc.StatusCode.INTERNAL:
        _log.error("request %r failed: %s", request_id(), type(error).__name__)
        _log.debug("request %r: %s", request_id(), error)
    return status


SERVICE = "inference.GRPCInferenceService"
"""The service's path on the wire; the generated messages are in another package."""

METHODS = ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer")

Method: TypeAlias = Callable[[bytes, Call], bytes]
"""A method of the protocol, from serialized request to serialized answer. Raises `UpwellError`."""


def methods_of(dataplane: Dataplane, most_bytes: int) -> Mapping[str, Method]:
    """The six unary methods, by name. Answers of models that take more than `most_bytes` are refused."""
    servicer = _Servicer(dataplane, most_bytes)
    methods: tuple[Method, ...] = (
        servicer.server_live,
        servicer.server_ready,
        servicer.model_ready,
        servicer.server_metadata,
        servicer.model_metadata,
        servicer.model_infer,
    )
    return dict(zip(METHODS, methods, strict=True))


def add_methods(server: grpc.Server, methods: Mapping[str, Method]) -> None:
    """Add `methods`, by name, to the protocol's service, beside those that `server` already has."""
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        name: grpc.unary_unary_rpc_method_handler(_guarded(method)) for name, method in methods.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


class _Servicer:
    """Decode, call, encode."""

    def __init__(self, dataplane: Dataplane, most_bytes: int) -> None:
        self._dataplane = dataplane
        self._most_bytes = most_bytes

    def server_live(self, data: bytes, _: Call) -> bytes:
        converters.parse_empty(data)
        return converters.serialize_flag(True)

    def server_ready(self, data: bytes, _: Call) -> bytes:
        converters.parse_empty(data)
        return converters.serialize_flag(self._dataplane.ready())

    def model_ready(self, data: bytes, _: Call) -> bytes:
        model, version = converters.parse_model_name(data)
        return converters.serialize_flag(self._dataplane.ready(model, version))

    def server_metadata(self, data: bytes, _: Call) -> bytes:
        converters.parse_empty(data)
        return converters.serialize_server_metadata(self._dataplane.server_metadata())

    def model_metadata(self, data: bytes, _: Call) -> bytes:
        model, version = converters.parse_model_name(data)
        return converters.serialize_model_metadata(self._dataplane.metadata(model, version))

    def model_infer(self, data: bytes, call: Call) -> bytes:
        with self._dataplane.reading(call, len(data)):
            request = read_request(data)
        response = infer(self._dataplane, request, call)
        return serialized(converters.serialize_infer_response, response, self._most_bytes)


def _guarded(method: Method) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    """`method` with its exceptions turned into statuses. Failures inside the server are logged in full."""

    def handle(data: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            return method(data, call_of(context))
        except Exception as error:  # noqa: BLE001 (the boundary: callers must not see the inside of a bug)
            abort(context, failure(error))

    return handle


def abort(context: grpc.ServicerContext, status: Status) -> NoReturn:
    """End the call with this status."""
    if status.retry_after_s is not None:
        context.set_trailing_metadata(trailers(status))
    context.abort(status.code, status.text)

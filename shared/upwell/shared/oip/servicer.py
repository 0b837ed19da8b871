"""The Open Inference Protocol over a `Dataplane`, for the agent and the cloud service alike.

The handlers take and give serialized messages: an unreadable one is then INVALID_ARGUMENT, where generated
handlers would answer INTERNAL before any code of ours runs.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NoReturn, TypeAlias

import grpc

from upwell.shared.errors import UpwellError
from upwell.shared.oip import converters
from upwell.shared.oip.dataplane import Call, Dataplane
from upwell.shared.oip.statuses import Status, status_of
from upwell.shared.oip.tokens import token_name

SERVICE = "inference.GRPCInferenceService"
"""The path of the service on the wire; our generated messages live in a package of another name."""

METHODS = ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer")

_NO_DEADLINE_S = 1e9
# gRPC runs the interceptors and the handler of one call in one context of their own, so this cannot leak.
_request_id: ContextVar[str] = ContextVar("request_id", default="")

_log = logging.getLogger(__name__)
Handler: TypeAlias = Callable[[bytes, grpc.ServicerContext], bytes]
"""A method of the protocol, from serialized request to serialized answer."""


def add_oip_service(server: grpc.Server, dataplane: Dataplane) -> None:
    """Serve all six methods of the protocol on `server` (before it is started) from `dataplane`."""
    servicer = _Servicer(dataplane)
    behaviours: tuple[Handler, ...] = (
        servicer.server_live,
        servicer.server_ready,
        servicer.model_ready,
        servicer.server_metadata,
        servicer.model_metadata,
        servicer.model_infer,
    )
    add_methods(server, dict(zip(METHODS, behaviours, strict=True)))


def add_methods(server: grpc.Server, methods: Mapping[str, Handler]) -> None:
    """Serve `methods`, by name, as methods of the protocol's service, beside those it has already."""
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        name: grpc.unary_unary_rpc_method_handler(_guarded(method)) for name, method in methods.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


class _Servicer:
    """Decode, call, encode."""

    def __init__(self, dataplane: Dataplane) -> None:
        self._dataplane = dataplane

    def server_live(self, data: bytes, _: grpc.ServicerContext) -> bytes:
        converters.parse_empty(data)
        return converters.serialize_flag(True)

    def server_ready(self, data: bytes, _: grpc.ServicerContext) -> bytes:
        converters.parse_empty(data)
        return converters.serialize_flag(self._dataplane.ready())

    def model_ready(self, data: bytes, _: grpc.ServicerContext) -> bytes:
        model, version = converters.parse_model_name(data)
        return converters.serialize_flag(self._dataplane.ready(model, version))

    def server_metadata(self, data: bytes, _: grpc.ServicerContext) -> bytes:
        converters.parse_empty(data)
        return converters.serialize_server_metadata(self._dataplane.server_metadata())

    def model_metadata(self, data: bytes, _: grpc.ServicerContext) -> bytes:
        model, version = converters.parse_model_name(data)
        return converters.serialize_model_metadata(self._dataplane.metadata(model, version))

    def model_infer(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        request = converters.parse_infer_request(data)
        if not request.id:
            request = dataclasses.replace(request, id=uuid.uuid4().hex)
        _request_id.set(request.id)
        response = self._dataplane.infer(request, _call(context))
        try:
            return converters.serialize_infer_response(response)
        except UpwellError as error:
            # The model made what the protocol cannot carry, which is no fault of the caller's.
            raise RuntimeError("the answer cannot be serialized") from error


def _guarded(method: Handler) -> Handler:
    """`method`, with what it raises turned into a status. Failures inside the server are logged whole."""

    def handle(data: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            return method(data, context)
        except Exception as error:  # noqa: BLE001 (the boundary: a bug must not show its insides to the caller)
            status = status_of(error)
            if status.code is grpc.StatusCode.INTERNAL:
                _log.error("request %r failed: %s", _request_id.get(), status.text, exc_info=error)
            _abort(context, status)

    return handle


def _abort(context: grpc.ServicerContext, status: Status) -> NoReturn:
    context.abort(status.code, status.text)


def _call(context: grpc.ServicerContext) -> Call:
    # Without a deadline gRPC reports the largest number it has.
    remaining_s = context.time_remaining()
    cancelled = threading.Event()
    if not context.add_callback(cancelled.set):
        cancelled.set()
    return Call(
        deadline_s=math.inf if remaining_s is None or remaining_s > _NO_DEADLINE_S else time.monotonic() + remaining_s,
        cancelled=cancelled,
        client=client_name(context),
    )


def client_name(context: grpc.ServicerContext) -> str:
    """Who calls: by its token, else by its certificate, else where it is."""
    return token_name() or _certificate_name(context) or context.peer()


def _certificate_name(context: grpc.ServicerContext) -> str:
    """The common name of the client's certificate; empty where it showed none."""
    if context.peer_identities() is None:
        return ""
    facts: Mapping[str, Any] = context.auth_context()
    names: Sequence[bytes] = facts.get("x509_common_name", ())
    return names[0].decode(errors="replace") if names else ""

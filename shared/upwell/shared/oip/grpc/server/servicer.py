"""The Open Inference Protocol over a `Dataplane`, for both the agent and the cloud service.

The handlers take and return serialized messages: an unreadable one is INVALID_ARGUMENT, where generated handlers would
answer INTERNAL before any code of ours runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn, TypeAlias

import grpc

from upwell.shared.oip.codec import converters
from upwell.shared.oip.dataplane import Call, Dataplane
from upwell.shared.oip.error_statuses import Status
from upwell.shared.oip.grpc.server.infer_call import call_of, failure, infer, read_request, serialized
from upwell.shared.oip.retry_hints import trailers

SERVICE = "inference.GRPCInferenceService"
"""The service's path on the wire; the generated messages are in another package."""

METHODS = ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer")

Method: TypeAlias = Callable[[bytes, Call], bytes]
"""A method of the protocol, from serialized request to serialized answer. Raises `UpwellError`."""


def methods_of(dataplane: Dataplane) -> Mapping[str, Method]:
    """The six unary methods, by name."""
    servicer = _Servicer(dataplane)
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

    def __init__(self, dataplane: Dataplane) -> None:
        self._dataplane = dataplane

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
        return serialized(converters.serialize_infer_response, infer(self._dataplane, request, call))


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

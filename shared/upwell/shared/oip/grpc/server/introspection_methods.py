"""Triton's configuration, statistics and settings extensions over gRPC, and refusals for those not offered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import grpc

from upwell.shared.oip.auth.caller import check_may_use, may_use, naming_no_others
from upwell.shared.oip.codec import introspection_converters as codec
from upwell.shared.oip.dataplane import Call
from upwell.shared.oip.grpc.server.servicer import Method, add_methods
from upwell.shared.oip.introspection import Introspection, ServerSettings, refuse_changes, refuse_shared_memory
from upwell.shared.oip.model_statistics import ModelStatistics
from upwell.shared.platform.call_threads import yield_permit

METHODS = ("ModelConfig", "ModelStatistics", "TraceSetting", "LogSettings")

_SHARED_MEMORY = tuple(
    f"{kind}SharedMemory{what}" for kind in ("System", "Cuda") for what in ("Status", "Register", "Unregister")
)


def add_introspection_methods(server: grpc.Server, introspection: Introspection) -> None:
    """Add the methods to the protocol's service on `server`, before it starts."""
    servicer = _Servicer(introspection)
    told = (servicer.config, servicer.statistics, servicer.trace_settings, servicer.log_settings)
    methods: Mapping[str, Method] = dict(zip(METHODS, told, strict=True))
    add_methods(server, {**methods, **dict.fromkeys(_SHARED_MEMORY, _refuse_shared_memory)})


def permitted_statistics(introspection: Introspection, model: str, version: str) -> Sequence[ModelStatistics]:
    """The statistics of the models that the current caller may use. Raises as `introspection` does."""
    if not model:
        return [one for one in introspection.statistics() if may_use(one.model)]
    check_may_use(model)
    with naming_no_others(model, version):
        return introspection.statistics(model, version)


class _Servicer:
    """Decode, call, encode."""

    def __init__(self, introspection: Introspection) -> None:
        self._introspection = introspection

    def config(self, data: bytes, _: Call) -> bytes:
        model, version = codec.parse_config_request(data)
        check_may_use(model)
        with naming_no_others(model, version):
            return codec.serialize_config(self._introspection.config(model, version))

    def statistics(self, data: bytes, _: Call) -> bytes:
        model, version = codec.parse_statistics_request(data)
        yield_permit()  # other workers may be asked
        return codec.serialize_statistics(permitted_statistics(self._introspection, model, version))

    def trace_settings(self, data: bytes, _: Call) -> bytes:
        model, names = codec.parse_trace_request(data)
        return codec.serialize_trace_settings(self._settings(model, names))

    def log_settings(self, data: bytes, _: Call) -> bytes:
        return codec.serialize_log_settings(self._settings("", codec.parse_log_request(data)))

    def _settings(self, model: str, names: Sequence[str]) -> ServerSettings:
        if model:
            check_may_use(model)
            with naming_no_others(model):
                self._introspection.config(model)  # raises if the model does not exist
        refuse_changes(names)
        return self._introspection.settings()


def _refuse_shared_memory(_data: bytes, _call: Call) -> bytes:
    refuse_shared_memory()

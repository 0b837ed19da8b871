"""Triton's extensions in the protocol's messages. Any fault raises `InvalidRequest`."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.json_format import ParseDict

from upwell.rpc.oip.v2 import model_config_pb2 as config_pb
from upwell.rpc.oip.v2 import model_statistics_pb2 as statistics_pb
from upwell.rpc.oip.v2 import server_settings_pb2 as settings_pb
from upwell.shared.oip.codec.tensor_messages import parse
from upwell.shared.oip.introspection import ModelConfig, ServerSettings, config_document, statistics_document
from upwell.shared.oip.model_statistics import ModelStatistics


def parse_config_request(data: bytes) -> tuple[str, str]:
    """Parse model and version. Raises `InvalidRequest`."""
    message = parse(config_pb.ModelConfigRequest, data)
    return message.name, message.version


def serialize_config(config: ModelConfig) -> bytes:
    """Serialize a `ModelConfigResponse`."""
    return ParseDict({"config": config_document(config)}, config_pb.ModelConfigResponse()).SerializeToString()


def serialize_config_request(model: str) -> bytes:
    """Serialize a `ModelConfigRequest`."""
    return config_pb.ModelConfigRequest(name=model).SerializeToString()


def parse_config_parameters(data: bytes) -> dict[str, str]:
    """Parse the `parameters` of a `ModelConfigResponse`. Raises `InvalidRequest`."""
    parameters = parse(config_pb.ModelConfigResponse, data).config.parameters
    return {name: parameter.string_value for name, parameter in parameters.items()}


def parse_statistics_request(data: bytes) -> tuple[str, str]:
    """Parse model and version, which may be empty. Raises `InvalidRequest`."""
    message = parse(statistics_pb.ModelStatisticsRequest, data)
    return message.name, message.version


def serialize_statistics(statistics: Sequence[ModelStatistics]) -> bytes:
    """Serialize a `ModelStatisticsResponse`."""
    return ParseDict(statistics_document(statistics), statistics_pb.ModelStatisticsResponse()).SerializeToString()


def parse_trace_request(data: bytes) -> tuple[str, tuple[str, ...]]:
    """Parse the model, which may be empty, and the names of the settings to change. Raises `InvalidRequest`."""
    message = parse(settings_pb.TraceSettingRequest, data)
    return message.model_name, tuple(message.settings)


def parse_log_request(data: bytes) -> tuple[str, ...]:
    """Parse the names of the settings to change. Raises `InvalidRequest`."""
    return tuple(parse(settings_pb.LogSettingsRequest, data).settings)


def serialize_trace_settings(settings: ServerSettings) -> bytes:
    """Serialize a `TraceSettingResponse`."""
    message = settings_pb.TraceSettingResponse()
    for name, values in settings.trace.items():
        message.settings[name].value.extend(values)
    return message.SerializeToString()


def serialize_log_settings(settings: ServerSettings) -> bytes:
    """Serialize a `LogSettingsResponse`."""
    message = settings_pb.LogSettingsResponse()
    for name, value in settings.log.items():
        one = message.settings[name]
        if isinstance(value, bool):
            one.bool_param = value
        elif isinstance(value, int):
            one.uint32_param = value
        else:
            one.string_param = value
    return message.SerializeToString()

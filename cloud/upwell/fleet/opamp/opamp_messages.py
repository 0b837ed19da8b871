"""Converts OpAMP's messages to and from the registry's values. Text from outside is truncated and cleaned here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from google.protobuf.message import DecodeError
from pydantic import BaseModel, Field, ValidationError

from upwell.fleet.enrolment.certificate_authority import IssuedCertificate
from upwell.fleet.registry.device_reports import ConfigurationStatus, DeviceCounts, Explained, Report, Shadowed
from upwell.rpc.opamp.v1 import anyvalue_pb2, opamp_pb2
from upwell.shared.errors import InvalidRequest, printable
from upwell.shared.files import parse_json
from upwell.shared.opamp import DIGEST_TYPE, DRIFT, EXPLAIN, RELEASE_PACKAGE, SHADOW, STATISTICS, WISH_FILE, digest_of
from upwell.shared.routing.request_log_line import LogLine

MOST_ENTRIES = 64
LONGEST_KEY, LONGEST_VALUE = 100, 500
MAX_CUSTOM_BYTES = {STATISTICS: 48 << 10, EXPLAIN: 64 << 10, DRIFT: 32 << 10, SHADOW: 64 << 10}
_DEPTH = 3

_CAPABILITIES = (
    opamp_pb2.ServerCapabilities_AcceptsStatus
    | opamp_pb2.ServerCapabilities_OffersRemoteConfig
    | opamp_pb2.ServerCapabilities_AcceptsEffectiveConfig
    | opamp_pb2.ServerCapabilities_AcceptsPackagesStatus
    | opamp_pb2.ServerCapabilities_OffersConnectionSettings
    | opamp_pb2.ServerCapabilities_AcceptsConnectionSettingsRequest
)
_STATUSES: Mapping[int, str] = {
    opamp_pb2.RemoteConfigStatuses_UNSET: "unset",
    opamp_pb2.RemoteConfigStatuses_APPLIED: "applied",
    opamp_pb2.RemoteConfigStatuses_APPLYING: "applying",
    opamp_pb2.RemoteConfigStatuses_FAILED: "failed",
}
_PACKAGE_STATUSES = ("installed", "pending", "installing", "failed", "downloading")


@dataclass(frozen=True)
class Incoming:
    """One message of an agent, parsed. `csr` is empty if it requests no certificate."""

    report: Report
    csr: bytes
    wants_uid: bool
    accepts_configuration: bool
    accepts_settings: bool
    can_explain: bool


@dataclass(frozen=True)
class ConnectionSettings:
    """How the agent is to reach the service: its poll interval and, if requested, its certificate."""

    url: str
    poll_s: float
    authority_pem: bytes
    certificate: IssuedCertificate | None = None


@dataclass(frozen=True)
class PollReply:
    """The service's reply to a poll; None for fields that it leaves out."""

    instance_uid: str
    new_instance_uid: bytes = b""
    wants_full_state: bool = False
    wish: bytes | None = None
    settings: ConnectionSettings | None = None
    question: tuple[str, str] | None = None


def read(data: bytes) -> Incoming:
    """Parse an agent's message. Raises `InvalidRequest`."""
    try:
        message = opamp_pb2.AgentToServer.FromString(data)
    except DecodeError:
        raise InvalidRequest("the body cannot be read as an AgentToServer message") from None
    if len(message.instance_uid) != 16:
        raise InvalidRequest(f"instance_uid has {len(message.instance_uid)} bytes; expected 16")
    capabilities = message.capabilities & (2**32 - 1)
    known = [clean(one, LONGEST_KEY) for one in message.custom_capabilities.capabilities[:MOST_ENTRIES]]
    settings = opamp_pb2.AgentCapabilities_AcceptsOpAMPConnectionSettings | opamp_pb2.AgentCapabilities_ReportsHeartbeat
    return Incoming(
        report=_report(message, capabilities, known),
        csr=message.connection_settings_request.opamp.certificate_request.csr,
        wants_uid=bool(message.flags & opamp_pb2.AgentToServerFlags_RequestInstanceUid),
        accepts_configuration=bool(capabilities & opamp_pb2.AgentCapabilities_AcceptsRemoteConfig),
        accepts_settings=bool(capabilities & settings),
        can_explain=EXPLAIN in known,
    )


def _report(message: opamp_pb2.AgentToServer, capabilities: int, known: list[str]) -> Report:
    health = message.health if message.HasField("health") else None
    packages = _packages(message.package_statuses) if message.HasField("package_statuses") else None
    custom = message.custom_message if message.HasField("custom_message") else None
    return Report(
        instance_uid=message.instance_uid.hex(),
        sequence_num=message.sequence_num,
        capabilities=capabilities,
        attributes=_attributes(message.agent_description) if message.HasField("agent_description") else None,
        health=None if health is None else _health(health, _DEPTH),
        started_unix_ns=0 if health is None else min(health.start_time_unix_nano, 2**63 - 1),
        configuration=_configuration(message.effective_config) if message.HasField("effective_config") else None,
        configuration_status=(
            _configuration_status(message.remote_config_status) if message.HasField("remote_config_status") else None
        ),
        packages=packages,
        release=None if packages is None else _release(packages),
        custom_capabilities=known if message.HasField("custom_capabilities") else None,
        counted=_counted(custom),
        explained=_explained(custom),
        drift=_drift(custom),
        shadowed=_shadowed(custom),
        is_leaving=message.HasField("agent_disconnect"),
    )


def clean(text: str, longest: int = LONGEST_VALUE) -> str:
    """The text, truncated, without characters that a terminal or a database would interpret."""
    return printable(text[:longest])


def _attributes(description: opamp_pb2.AgentDescription) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in (*description.identifying_attributes, *description.non_identifying_attributes):
        if len(found) >= MOST_ENTRIES:
            break
        found[clean(one.key, LONGEST_KEY)] = clean(_value(one.value))
    return found


def _value(value: anyvalue_pb2.AnyValue) -> str:
    kind = value.WhichOneof("value")
    if kind in (None, "array_value", "kvlist_value", "bytes_value"):
        return ""  # no attribute used here has such a value
    found = getattr(value, kind)
    return str(found).lower() if isinstance(found, bool) else str(found)


def _health(health: opamp_pb2.ComponentHealth, depth: int) -> dict[str, Any]:
    """The health without its time, which would differ in every poll."""
    found: dict[str, Any] = {"healthy": health.healthy}
    if health.status:
        found["status"] = clean(health.status, LONGEST_KEY)
    if health.last_error:
        found["last_error"] = clean(health.last_error)
    if health.component_health_map and depth:
        found["components"] = {
            clean(name, LONGEST_KEY): _health(one, depth - 1) for name, one in _first(health.component_health_map)
        }
    return found


def _first(entries: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    return sorted(entries.items())[:MOST_ENTRIES]


def _configuration(configuration: opamp_pb2.EffectiveConfig) -> dict[str, str]:
    """Digests by file. Anything else is replaced by its digest: the registry stores no configuration, which may hold
    secrets.
    """
    found: dict[str, str] = {}
    for name, file in _first(configuration.config_map.config_map):
        is_digest = file.content_type == DIGEST_TYPE and len(file.body) <= LONGEST_KEY and file.body.isascii()
        found[clean(name, LONGEST_KEY)] = clean(file.body.decode("ascii")) if is_digest else digest_of(file.body).hex()
    return found


def _configuration_status(status: opamp_pb2.RemoteConfigStatus) -> ConfigurationStatus:
    config_hash = status.last_remote_config_hash[:32].hex()
    return ConfigurationStatus(config_hash, _STATUSES.get(status.status, "unset"), clean(status.error_message))


def _packages(statuses: opamp_pb2.PackageStatuses) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, one in _first(statuses.packages):
        state = _PACKAGE_STATUSES[one.status] if 0 <= one.status < len(_PACKAGE_STATUSES) else "unknown"
        found[clean(name, LONGEST_KEY)] = {
            "version": clean(one.agent_has_version, LONGEST_KEY),
            "offered": clean(one.server_offered_version, LONGEST_KEY),
            "status": state,
            "error": clean(one.error_message),
        }
    return found


def _release(packages: Mapping[str, Any]) -> int | None:
    version = packages.get(RELEASE_PACKAGE, {}).get("version", "")
    return int(version) if version.isascii() and version.isdigit() and len(version) < 16 else None


def _custom(message: opamp_pb2.CustomMessage | None, capability: str, kind: str) -> dict[str, Any] | None:
    """The JSON object of a custom message of that kind; None for another kind. Raises `InvalidRequest`."""
    if message is None or message.capability != capability or message.type != kind:
        return None
    if len(message.data) > MAX_CUSTOM_BYTES[capability]:
        most = MAX_CUSTOM_BYTES[capability]
        raise InvalidRequest(f"the message {capability} has {len(message.data)} bytes; expected at most {most}")
    try:
        found = parse_json(message.data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidRequest(f"the custom message {capability} is not a JSON object")
    return {clean(str(key), LONGEST_KEY): _cleaned(one) for key, one in [*found.items()][:MOST_ENTRIES]}


def _cleaned(value: Any, depth: int = 6) -> Any:
    if isinstance(value, str):
        return clean(value, 2000)
    if isinstance(value, float):
        return value if abs(value) < 1e300 else None
    if isinstance(value, int):
        return value if abs(value) < 2**62 else None
    if not isinstance(value, (dict, list)):
        return value
    if not depth:
        return None
    if isinstance(value, dict):
        return {clean(str(key), LONGEST_KEY): _cleaned(one, depth - 1) for key, one in [*value.items()][:MOST_ENTRIES]}
    return [_cleaned(one, depth - 1) for one in value[:MOST_ENTRIES]]


def _counted(message: opamp_pb2.CustomMessage | None) -> DeviceCounts | None:
    found = _custom(message, STATISTICS, "counted")
    if found is None:
        return None
    release, since, counts = found.get("release"), found.get("since_unix_s"), found.get("counts")
    is_number = isinstance(since, (int, float)) and not isinstance(since, bool)
    if not is_number or not isinstance(counts, dict) or not (release is None or type(release) is int):
        raise InvalidRequest("expected statistics with `release`, `since_unix_s` and `counts`")
    demand = found.get("demand")
    return DeviceCounts(release, float(since or 0.0), counts, demand if isinstance(demand, dict) else {})


def _drift(message: opamp_pb2.CustomMessage | None) -> dict[str, Any] | None:
    found = _custom(message, DRIFT, "found")
    if found is None:
        return None
    models = found.get("models")
    if not isinstance(models, dict) or not all(map(_is_drift_report, models.values())):
        raise InvalidRequest("expected `models`, and `findings` and `quantities` of each")
    return models


def _is_drift_report(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("findings"), list):
        return False
    quantities = value.get("quantities", {})
    return isinstance(quantities, dict) and all(isinstance(one, dict) for one in quantities.values())


def _explained(message: opamp_pb2.CustomMessage | None) -> Explained | None:
    found = _custom(message, EXPLAIN, "told")
    if found is None:
        return None
    return Explained(str(found.pop("id", ""))[:32], found)


def _shadowed(message: opamp_pb2.CustomMessage | None) -> Shadowed | None:
    if message is None or (message.capability, message.type) != (SHADOW, "lines"):
        return None
    if len(message.data) > MAX_CUSTOM_BYTES[SHADOW]:
        raise InvalidRequest(f"the message {SHADOW} has {len(message.data)} bytes")
    try:
        said = _ShadowMessage.model_validate_json(message.data)
    except ValidationError:
        raise InvalidRequest("expected `release`, `lines` of a request log and a `problem`") from None
    lines = [one.model_copy(update={"tags": {}}).model_dump_json(exclude_defaults=True) for one in said.lines]
    return Shadowed(said.release, lines, clean(said.problem))


class _ShadowMessage(BaseModel):
    release: Annotated[int, Field(ge=1, le=2**53)]
    lines: Annotated[list[LogLine], Field(max_length=1000)]
    problem: str = ""


def write(reply: PollReply) -> bytes:
    """Encode the message to the agent."""
    message = opamp_pb2.ServerToAgent(instance_uid=bytes.fromhex(reply.instance_uid), capabilities=_CAPABILITIES)
    message.custom_capabilities.capabilities.extend((STATISTICS, EXPLAIN, DRIFT, SHADOW))
    if reply.wants_full_state:
        message.flags |= opamp_pb2.ServerToAgentFlags_ReportFullState
    if reply.new_instance_uid:
        message.agent_identification.new_instance_uid = reply.new_instance_uid
    if reply.wish is not None:
        file = message.remote_config.config.config_map[WISH_FILE]
        file.body, file.content_type = reply.wish, "application/json"
        message.remote_config.config_hash = digest_of(reply.wish)
    if reply.settings is not None:
        _write_settings(message.connection_settings, reply.settings)
    if reply.question is not None:
        question_id, request_id = reply.question
        message.custom_message.capability, message.custom_message.type = EXPLAIN, "ask"
        message.custom_message.data = json.dumps({"id": question_id, "request": request_id}).encode()
    return message.SerializeToString()


def _write_settings(offers: opamp_pb2.ConnectionSettingsOffers, settings: ConnectionSettings) -> None:
    opamp = offers.opamp
    opamp.destination_endpoint = settings.url
    opamp.heartbeat_interval_seconds = round(settings.poll_s)
    if settings.certificate is not None:
        opamp.certificate.cert = settings.certificate.pem
        opamp.certificate.ca_cert = settings.authority_pem
    offers.hash = digest_of(opamp.SerializeToString(deterministic=True))


def write_error(text: str, *, retry_s: float) -> bytes:
    """Encode the refusal of a message; `retry_s` is the time after which it may be retried."""
    unavailable, bad = opamp_pb2.ServerErrorResponseType_Unavailable, opamp_pb2.ServerErrorResponseType_BadRequest
    kind = unavailable if retry_s else bad
    error = opamp_pb2.ServerErrorResponse(type=kind, error_message=text)
    if retry_s:
        error.retry_info.retry_after_nanoseconds = int(retry_s * 1e9)
    return opamp_pb2.ServerToAgent(error_response=error).SerializeToString()

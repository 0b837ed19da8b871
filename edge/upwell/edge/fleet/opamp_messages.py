"""Conversion between OpAMP's messages and the device's values. Text from the service is limited here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from upwell.rpc.opamp.v1 import opamp_pb2
from upwell.shared.files import parse_json
from upwell.shared.opamp import DIGEST_TYPE, DRIFT, EXPLAIN, RELEASE_PACKAGE, SHADOW, STATISTICS, WISH_FILE

CAPABILITIES = (
    opamp_pb2.AgentCapabilities_ReportsStatus
    | opamp_pb2.AgentCapabilities_AcceptsRemoteConfig
    | opamp_pb2.AgentCapabilities_ReportsEffectiveConfig
    | opamp_pb2.AgentCapabilities_ReportsPackageStatuses
    | opamp_pb2.AgentCapabilities_AcceptsOpAMPConnectionSettings
    | opamp_pb2.AgentCapabilities_ReportsHealth
    | opamp_pb2.AgentCapabilities_ReportsRemoteConfig
    | opamp_pb2.AgentCapabilities_ReportsHeartbeat
)
_STATUSES = {
    "unset": opamp_pb2.RemoteConfigStatuses_UNSET,
    "applied": opamp_pb2.RemoteConfigStatuses_APPLIED,
    "failed": opamp_pb2.RemoteConfigStatuses_FAILED,
}
_FAILED = opamp_pb2.PackageStatusEnum_InstallFailed
_PHASES = {
    "fetching": opamp_pb2.PackageStatusEnum_Downloading,
    "trial": opamp_pb2.PackageStatusEnum_Installing,
    "refused": _FAILED,
    "rolled_back": _FAILED,
}
_LONGEST = 500


class Unreadable(ValueError):
    """The data is not a message from a service."""


@dataclass(frozen=True)
class ServiceMessage:
    """The service's message; unset fields are empty or None. `ignored` lists offers that no device accepts, and
    `understands` the custom capabilities of the service."""

    wants_full_state: bool = False
    wish: bytes | None = None
    wish_hash: bytes = b""
    certificate: bytes = b""
    poll_s: float | None = None
    question: tuple[str, str] | None = None
    error: str = ""
    ignored: tuple[str, ...] = ()
    understands: frozenset[str] = frozenset()


def read(data: bytes, instance_uid: bytes) -> ServiceMessage:
    """Parse the service's message. Raises `Unreadable`."""
    try:
        message = opamp_pb2.ServerToAgent.FromString(data)
    except DecodeError:
        raise Unreadable("the answer is not an OpAMP message") from None
    if message.HasField("error_response"):
        return ServiceMessage(error=message.error_response.error_message[:_LONGEST] or "an error without a reason")
    if message.instance_uid != instance_uid:
        raise Unreadable("the answer is for another device")
    config = message.remote_config if message.HasField("remote_config") else None
    return ServiceMessage(
        wants_full_state=bool(message.flags & opamp_pb2.ServerToAgentFlags_ReportFullState),
        wish=None if config is None else config.config.config_map[WISH_FILE].body,
        wish_hash=b"" if config is None else config.config_hash[:32],
        certificate=message.connection_settings.opamp.certificate.cert,
        poll_s=float(message.connection_settings.opamp.heartbeat_interval_seconds) or None,
        question=_question(message.custom_message),
        ignored=_ignored(message),
        understands=frozenset(message.custom_capabilities.capabilities),
    )


def _question(message: opamp_pb2.CustomMessage) -> tuple[str, str] | None:
    if message.capability != EXPLAIN or message.type != "ask":
        return None
    try:
        found = parse_json(message.data)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    question_id, request_id = found.get("id"), found.get("request")
    return (question_id, request_id) if isinstance(question_id, str) and isinstance(request_id, str) else None


def _ignored(message: opamp_pb2.ServerToAgent) -> tuple[str, ...]:
    offers = message.connection_settings
    config = set(message.remote_config.config.config_map) - {WISH_FILE}
    found = {
        "packages": message.HasField("packages_available"),
        "a command": message.HasField("command"),
        "another instance UID": message.HasField("agent_identification"),
        "connections of other kinds": bool(offers.other_connections)
        or any(offers.HasField(name) for name in ("own_metrics", "own_traces", "own_logs")),
        "a private key": bool(offers.opamp.certificate.private_key),
        "headers": bool(offers.opamp.headers.headers),
        "files of configuration": bool(config),
    }
    return tuple(name for name, is_there in found.items() if is_there)


def start(instance_uid: bytes, sequence_num: int) -> opamp_pb2.AgentToServer:
    """An empty message."""
    return opamp_pb2.AgentToServer(instance_uid=instance_uid, sequence_num=sequence_num, capabilities=CAPABILITIES)


def put_description(message: opamp_pb2.AgentToServer, attributes: Mapping[str, str]) -> None:
    """Add the device's attributes."""
    description = message.agent_description
    for key, value in attributes.items():
        is_identifying = key.startswith("service.")
        kind = description.identifying_attributes if is_identifying else description.non_identifying_attributes
        kind.add(key=key).value.string_value = value[:_LONGEST]
    message.custom_capabilities.capabilities.extend((STATISTICS, EXPLAIN, DRIFT, SHADOW))


def put_health(message: opamp_pb2.AgentToServer, document: Mapping[str, Any], started_unix_ns: int) -> None:
    """Add the health of the agent and its models, from the document of `/health`."""
    health = message.health
    health.healthy = document.get("status") == "ok"
    health.start_time_unix_nano = started_unix_ns
    reasons = [str(one) for one in document.get("problems", ())]
    for name, model in document.get("models", {}).items():
        one = health.component_health_map[str(name)]
        one.healthy, one.status = model.get("state") == "ready", str(model.get("state", ""))
        one.last_error = str(model.get("reason", ""))[:_LONGEST]
        if not one.healthy:
            reasons.append(f"{name} is {one.status}" + (f": {one.last_error}" if one.last_error else ""))
    health.last_error = "; ".join(reasons)[:_LONGEST]


def put_configuration(message: opamp_pb2.AgentToServer, found: Mapping[str, str]) -> None:
    """Add the digests of the configuration in force; the files themselves stay here, since they name secrets."""
    for name, digest in found.items():
        file = message.effective_config.config_map.config_map[name]
        file.body, file.content_type = digest.encode(), DIGEST_TYPE
    message.effective_config.SetInParent()


def put_wish_status(message: opamp_pb2.AgentToServer, wish_hash: bytes, status: str, error: str) -> None:
    """Add the outcome of the service's request."""
    message.remote_config_status.last_remote_config_hash = wish_hash
    message.remote_config_status.status = _STATUSES[status]
    message.remote_config_status.error_message = error[:_LONGEST]


def put_release(message: opamp_pb2.AgentToServer, sequence: int, phase: str, reason: str) -> None:
    """Add which release runs (0: none), and why another one does not."""
    package = message.package_statuses.packages[RELEASE_PACKAGE]
    package.name, package.agent_has_version = RELEASE_PACKAGE, str(sequence) if sequence else ""
    package.status = _PHASES.get(phase, opamp_pb2.PackageStatusEnum_Installed)
    package.error_message = (f"{phase}: {reason}" if package.status == _FAILED else reason)[:_LONGEST]


def put_request(message: opamp_pb2.AgentToServer, csr: bytes) -> None:
    """Add a certificate request."""
    message.connection_settings_request.opamp.certificate_request.csr = csr


def put_custom(message: opamp_pb2.AgentToServer, capability: str, kind: str, body: Mapping[str, Any]) -> None:
    """Add a custom message of Upwell."""
    message.custom_message.capability, message.custom_message.type = capability, kind
    message.custom_message.data = json.dumps(body).encode()

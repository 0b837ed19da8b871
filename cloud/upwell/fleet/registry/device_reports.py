"""A device's report in one poll, and what it changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, update

from upwell.fleet.registry.device_events import note_event
from upwell.fleet.registry.devices import Stored, drift_of
from upwell.fleet.storage.tables import DEVICES
from upwell.shared.opamp import AGENT_NAME, LABEL


@dataclass(frozen=True)
class ConfigurationStatus:
    """The status of the remote configuration with that hash: `applied`, `applying`, `failed` or `unset`."""

    config_hash: str
    status: str
    error: str


@dataclass(frozen=True)
class DeviceCounts:
    """A device's counts since an instant (Unix seconds) under one release (None: without one), and by model the
    demand and curves by which budgets are shared.
    """

    release: int | None
    since_unix_s: float
    counts: Mapping[str, Any]
    demand: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Explained:
    """A device's answer to the question with that id."""

    question_id: str
    answer: Mapping[str, Any]


@dataclass(frozen=True)
class Shadowed:
    """The report of a shadow release: lines of a request log, and why it does not run, if it does not."""

    release: int
    lines: Sequence[str]
    problem: str


@dataclass(frozen=True)
class Report:
    """One poll. `instance_uid` is 32 hexadecimal digits; `started_unix_ns` is 0 if unknown."""

    instance_uid: str
    sequence_num: int
    capabilities: int
    attributes: Mapping[str, str] | None = None
    health: Mapping[str, Any] | None = None
    started_unix_ns: int = 0
    configuration: Mapping[str, str] | None = None
    configuration_status: ConfigurationStatus | None = None
    packages: Mapping[str, Any] | None = None
    release: int | None = None
    custom_capabilities: Sequence[str] | None = None
    counted: DeviceCounts | None = None
    drift: Mapping[str, Any] | None = None
    explained: Explained | None = None
    shadowed: Shadowed | None = None
    is_leaving: bool = False


def changes_of(device: Stored, report: Report, now_unix_s: float) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The columns that a report changes, and the events to record."""
    said: dict[str, Any] = {"instance_uid": report.instance_uid}
    if report.capabilities:
        said["capabilities"] = report.capabilities
    if report.attributes is not None:
        said |= _described(report.attributes, device)
    for name in ("health", "configuration", "custom_capabilities"):
        if (value := getattr(report, name)) is not None:
            said[name] = value
    if report.packages is not None:
        said |= {"packages": report.packages, "release": report.release}
    if (status := report.configuration_status) is not None:
        said |= {"config_hash": status.config_hash, "config_status": status.status, "config_error": status.error}
    if report.drift is not None and drift_of(report.drift) != drift_of(device["drift"]):
        said["drift"] = dict(report.drift)
    changed = {name: value for name, value in said.items() if device[name] != value}
    happened = _happened(device, changed)
    changed |= _twin(device, report.started_unix_ns, now_unix_s)
    if "twin_seen_unix_s" in changed and device["twin_seen_unix_s"] is None:
        happened.append(("double", "two processes use this device's key: was its disk copied?"))
    if report.is_leaving:
        happened.append(("stopped", "the agent has stopped"))
    return changed, happened


def apply(connection: Connection, device: Stored, report: Report, now_unix_s: float) -> None:
    """Write what a report changes, if anything."""
    changed, happened = changes_of(device, report, now_unix_s)
    if changed:
        connection.execute(
            update(DEVICES).where(DEVICES.c.id == device["id"]).values(**changed, last_seen_unix_s=now_unix_s)
        )
    note_event(connection, device["id"], now_unix_s, happened)


def _described(attributes: Mapping[str, str], device: Stored) -> dict[str, Any]:
    labels = {key.removeprefix(LABEL): value for key, value in attributes.items() if key.startswith(LABEL)}
    others = {key: value for key, value in attributes.items() if not key.startswith(LABEL)}
    name = others.get(AGENT_NAME) or others.get("host.name") or device["name"]
    return {"reported_labels": labels, "attributes": others, "name": name[:200]}


def _happened(device: Stored, changed: Mapping[str, Any]) -> list[tuple[str, str]]:
    happened: list[tuple[str, str]] = []
    if "instance_uid" in changed and device["instance_uid"]:
        happened.append(("instance", f"the instance UID is now {changed['instance_uid']}"))
    if "health" in changed and (device["health"] or {}).get("healthy") != changed["health"].get("healthy"):
        is_well, error = changed["health"].get("healthy"), changed["health"].get("last_error") or "no reason given"
        happened.append(("health", "healthy" if is_well else f"not healthy: {error}"))
    if "release" in changed:
        release = changed["release"]
        happened.append(("release", "runs no release" if release is None else f"runs release {release}"))
    if changed.get("config_status") == "failed":
        happened.append(("refused", f"refused its configuration: {changed.get('config_error') or 'no reason given'}"))
    if "drift" in changed:
        found = [f"{name}: {text}" for name, text in drift_of(changed["drift"]).items()]
        happened.append(("drift", "; ".join(found) or "no model drifts any more"))
    version = changed.get("attributes", {}).get("service.version", "")
    if version and version != device["attributes"].get("service.version"):
        happened.append(("version", f"runs version {version}"))
    return happened


def _twin(device: Stored, started_unix_ns: int, now_unix_s: float) -> dict[str, Any]:
    """Record that a process thought to have ended speaks again: two processes have the key."""
    if not started_unix_ns or started_unix_ns == device["started_unix_ns"]:
        return {}
    changed = {"started_unix_ns": started_unix_ns, "former_started_unix_ns": device["started_unix_ns"]}
    if started_unix_ns == device["former_started_unix_ns"]:
        changed["twin_seen_unix_s"] = now_unix_s
    return changed

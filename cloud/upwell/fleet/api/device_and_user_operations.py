"""The operations on devices, groups, tokens and users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, Field, StringConstraints

from upwell.fleet import users
from upwell.fleet.api.operation_table import AdmittedCall, Given, Nothing, Operation, Table, Taken
from upwell.fleet.enrolment import enrolment
from upwell.fleet.errors import NotFound
from upwell.fleet.registry import device_events, device_questions, devices, groups
from upwell.fleet.registry.device_presence import SILENT_POLLS, Presence
from upwell.fleet.registry.devices import Stored
from upwell.fleet.registry.groups import membership
from upwell.fleet.users import Role, check_name
from upwell.shared.errors import InvalidRequest

Sequence: TypeAlias = Annotated[int, Field(ge=0, le=2**53, description="Sequence number of a release.")]
UnixSeconds: TypeAlias = Annotated[float, Field(ge=0, le=1e11, description="Seconds since 1970, UTC.")]


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("expected printable characters")
    return text


Text: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(_printable)]
Labels: TypeAlias = Annotated[dict[Text, Text], Field(max_length=64)]


class DeviceSummary(Given):
    """A device, as of its last report. `wanted` is the release that it is to run, `release` the one that it runs.

    `shares` maps each model to the share of its requests that budgets let the device offload.
    """

    id: str
    name: str
    labels: dict[str, str]
    version: str
    release: int | None
    wanted: int | None
    wanted_by: str
    healthy: bool | None
    problem: str
    is_silent: bool
    shares: dict[str, float]
    double: str
    last_seen_unix_s: float | None
    enrolled_unix_s: float
    revoked_unix_s: float | None


class DeviceDetails(DeviceSummary):
    """Everything known of a device.

    `beside` is a shadow release that runs beside the served one; `drift` has the report of each watched model, null
    if it was never reported.
    """

    instance_uid: str
    key_sha256: str
    attributes: dict[str, str]
    health: dict[str, Any] | None
    configuration: dict[str, str] | None
    packages: dict[str, Any] | None
    config_status: str
    config_error: str
    not_before_unix_s: float | None
    beside: int | None
    statistics: dict[str, Any] | None
    drift: dict[str, Any] | None
    own_labels: dict[str, str]
    groups: list[str]


class Devices(Given):
    """Devices. Pass `next` as `after` to get those that follow; it is empty if there are none."""

    devices: list[DeviceSummary]
    next: str


class DevicesQuery(Taken):
    """Select the devices of one group, or those that match an expression."""

    group: Text | None = None
    where: Annotated[str, StringConstraints(max_length=1000)] | None = None
    after: Annotated[str, StringConstraints(max_length=32)] = ""
    limit: Annotated[int, Field(ge=1, le=1000)] = 200


class LabelsBody(Taken):
    """Labels to set; null removes one."""

    labels: Annotated[dict[Text, Text | None], Field(max_length=64)]


class AssignBody(Taken):
    """The release to run, and from when; null for no particular one."""

    release: Sequence | None
    not_before_unix_s: UnixSeconds | None = None


class QuestionBody(Taken):
    """The id of a request, or its beginning."""

    request_id: Text


class Question(Given):
    """A question to a device; `answer` is null until the device has polled and answered."""

    id: str
    device_id: str
    request_id: str
    asked_unix_s: float
    asked_by: str
    answered_unix_s: float | None
    answer: dict[str, Any] | None


class GroupBody(Taken):
    """The devices of the group, as a CEL expression over labels, name, version, os and arch."""

    expression: Annotated[str, StringConstraints(min_length=1, max_length=1000)]


class Group(Given):
    """A group, and the number of its devices."""

    name: str
    expression: str
    release: int | None
    not_before_unix_s: float | None
    devices: int


class Groups(Given):
    """All groups."""

    groups: list[Group]


class TokenBody(Taken):
    """The labels that the token gives a device on enrolment, and how long the token is valid."""

    labels: Labels = Field(default_factory=dict)
    valid_s: Annotated[float, Field(ge=60, le=366 * 86400.0)] = enrolment.DEFAULT_TOKEN_S


class NewToken(Given):
    """An enrolment token, shown only once."""

    id: str
    token: str
    expires_unix_s: float


class Token(Given):
    """An enrolment token, without the secret itself."""

    id: str
    labels: dict[str, str]
    created_unix_s: float
    created_by: str
    expires_unix_s: float
    used_unix_s: float | None


class Tokens(Given):
    """All enrolment tokens, the newest first."""

    tokens: list[Token]


class UserBody(Taken):
    """The user's role."""

    role: Role


class NewUser(Given):
    """A user's token, shown only once."""

    name: str
    role: Role
    token: str


class UserEntry(Given):
    """A user."""

    name: str
    role: Role
    created_unix_s: float


class Users(Given):
    """All users."""

    users: list[UserEntry]


class Since(Taken):
    """Entries after a number; -1 for the last ones."""

    after: Annotated[int, Field(ge=-1, le=2**62)] = 0
    limit: Annotated[int, Field(ge=1, le=1000)] = 200


class EventsQuery(Since):
    """Events, optionally of one device."""

    device: Annotated[str, StringConstraints(max_length=200)] | None = None


class DeviceEvent(Given):
    """An event of a device."""

    id: int
    at_unix_s: float
    device_id: str
    name: str
    kind: str
    text: str


class Events(Given):
    """Events, the oldest first."""

    events: list[DeviceEvent]


class AuditEntry(Given):
    """An action of a user."""

    id: int
    at_unix_s: float
    who: str
    action: str
    subject: str
    details: dict[str, Any]


class Audit(Given):
    """Actions of users, the oldest first."""

    entries: list[AuditEntry]


class HistoryQuery(Taken):
    """The number of entries."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class HistoryEntry(Given):
    """The counts of a device at that time, since `since`. The start differs for each process and release."""

    at_unix_s: float
    release: int | None
    since_unix_s: float
    counts: dict[str, Any]


class History(Given):
    """The counts of a device over time, the newest first."""

    history: list[HistoryEntry]


def _list_devices(call: AdmittedCall[Nothing, DevicesQuery]) -> Devices:
    query = call.query
    if query.group is not None and query.where is not None:
        raise InvalidRequest("`group` and `where` exclude each other")
    with call.state.database.reading() as connection:
        where = query.where if query.group is None else groups.find_group(connection, query.group)["expression"]
        assigned = [one for one in groups.all_groups(connection) if one["release"] is not None]
        doubles = devices.shared_uids(connection)
        if where is None:
            found = list(devices.all_devices(connection, query.after, query.limit + 1))
        else:
            holds = membership(where).holds
            chosen = (one for one in devices.all_devices(connection, query.after) if holds(devices.variables_of(one)))
            found = [one for one, _ in zip(chosen, range(query.limit + 1), strict=False)]
    shown = found[: query.limit]
    view = _View(call.state.presence, call.now_unix_s, assigned, doubles)
    more = shown[-1]["id"] if len(found) > query.limit else ""
    return Devices(devices=[DeviceSummary(**view.brief(one)) for one in shown], next=more)


def _show_device(call: AdmittedCall[Nothing, Nothing]) -> DeviceDetails:
    with call.state.database.reading() as connection:
        device = devices.find(connection, call.path["device"])
        known = groups.all_groups(connection)
        doubles = devices.shared_uids(connection)
    assigned = [one for one in known if one["release"] is not None]
    variables = devices.variables_of(device)
    return DeviceDetails(
        **_View(call.state.presence, call.now_unix_s, assigned, doubles).brief(device),
        **{
            name: device[name]
            for name in ("instance_uid", "key_sha256", "attributes", "health", "configuration", "packages",
                         "config_status", "config_error", "statistics", "drift")
        },
        not_before_unix_s=groups.wanted(device, assigned).not_before_unix_s,
        beside=device["shadow"],
        own_labels=device["labels"],
        groups=[one["name"] for one in known if membership(one["expression"]).holds(variables)],
    )  # fmt: skip


class _View:
    """A device as it is listed."""

    def __init__(
        self, presence: Presence, now_unix_s: float, assigned: list[Mapping[str, Any]], doubles: Mapping[str, list[str]]
    ) -> None:
        self._presence = presence
        self._now_unix_s = now_unix_s
        self._assigned = assigned
        self._doubles = doubles

    def brief(self, device: Stored) -> dict[str, Any]:
        """The values of a `DeviceSummary`."""
        wanted = groups.wanted(device, self._assigned)
        health = device["health"] or {}
        refused = f"refused its configuration: {device['config_error']}" if device["config_status"] == "failed" else ""
        kept_from = devices.release_package(device).get("error", "")
        seen = self._presence.last_seen(device)
        return {
            **{name: device[name] for name in ("id", "name", "release", "enrolled_unix_s", "revoked_unix_s")},
            "labels": devices.labels_of(device),
            "shares": device["shares"] or {},
            "version": device["attributes"].get("service.version", ""),
            "wanted": wanted.release,
            "wanted_by": wanted.source,
            "healthy": health.get("healthy"),
            "problem": wanted.conflict or refused or health.get("last_error") or kept_from,
            "is_silent": seen is None or self._now_unix_s - seen > SILENT_POLLS * self._presence.poll_s,
            "double": self._double(device),
            "last_seen_unix_s": seen,
        }

    def _double(self, device: Stored) -> str:
        others = [one for one in self._doubles.get(device["instance_uid"], ()) if one != device["id"]]
        if others:
            return f"the same instance UID as {', '.join(others)}, but another key"
        return "two processes use its key" if device["twin_seen_unix_s"] is not None else ""


def _label_device(call: AdmittedCall[LabelsBody, Nothing]) -> None:
    with call.state.database.writing() as connection:
        devices.set_labels(connection, call.actor, devices.find(connection, call.path["device"]), call.body.labels)


def _revoke_device(call: AdmittedCall[Nothing, Nothing]) -> None:
    with call.state.database.writing() as connection:
        devices.revoke(connection, call.actor, devices.find(connection, call.path["device"]))


def _assign_device(call: AdmittedCall[AssignBody, Nothing]) -> None:
    body = call.body
    with call.state.database.writing() as connection:
        device = devices.find(connection, call.path["device"])
        devices.assign(connection, call.actor, device, body.release, body.not_before_unix_s)


def _device_history(call: AdmittedCall[Nothing, HistoryQuery]) -> History:
    with call.state.database.reading() as connection:
        device = devices.find(connection, call.path["device"])
        found = devices.history(connection, device["id"], call.query.limit)
    return History(history=[HistoryEntry(**one) for one in found])


def _ask_device(call: AdmittedCall[QuestionBody, Nothing]) -> Question:
    with call.state.database.writing() as connection:
        device = devices.find(connection, call.path["device"])
        question_id = device_questions.ask(connection, call.actor, device, call.body.request_id)
        return Question(**device_questions.question(connection, question_id))


def _show_question(call: AdmittedCall[Nothing, Nothing]) -> Question:
    with call.state.database.reading() as connection:
        return Question(**device_questions.question(connection, call.path["question"]))


def _list_groups(call: AdmittedCall[Nothing, Nothing]) -> Groups:
    with call.state.database.reading() as connection:
        everything = [devices.variables_of(one) for one in devices.all_devices(connection) if not one["revoked_unix_s"]]
        found = groups.all_groups(connection)
    counts = {one["name"]: sum(map(membership(one["expression"]).holds, everything)) for one in found}
    return Groups(groups=[Group(**one, devices=counts[one["name"]]) for one in found])


def _put_group(call: AdmittedCall[GroupBody, Nothing]) -> None:
    name = call.path["group"]
    check_name(name)
    with call.state.database.writing() as connection:
        groups.put_group(connection, call.actor, name, call.body.expression)


def _drop_group(call: AdmittedCall[Nothing, Nothing]) -> None:
    with call.state.database.writing() as connection:
        groups.drop_group(connection, call.actor, call.path["group"])


def _assign_group(call: AdmittedCall[AssignBody, Nothing]) -> None:
    body = call.body
    with call.state.database.writing() as connection:
        groups.assign_group(connection, call.actor, call.path["group"], body.release, body.not_before_unix_s)


def _add_token(call: AdmittedCall[TokenBody, Nothing]) -> NewToken:
    with call.state.database.writing() as connection:
        return NewToken(**enrolment.add_token(connection, call.actor, call.body.labels, call.body.valid_s))


def _list_tokens(call: AdmittedCall[Nothing, Nothing]) -> Tokens:
    with call.state.database.reading() as connection:
        return Tokens(tokens=[Token(**one) for one in enrolment.all_tokens(connection)])


def _drop_token(call: AdmittedCall[Nothing, Nothing]) -> None:
    with call.state.database.writing() as connection:
        enrolment.drop_token(connection, call.actor, call.path["token"])


def _add_user(call: AdmittedCall[UserBody, Nothing]) -> NewUser:
    name, role = call.path["user"], call.body.role
    with call.state.database.writing() as connection:
        return NewUser(name=name, role=role, token=users.add_user(connection, call.actor, name, role))


def _list_users(call: AdmittedCall[Nothing, Nothing]) -> Users:
    with call.state.database.reading() as connection:
        return Users(users=[UserEntry(**one) for one in users.all_users(connection)])


def _remove_user(call: AdmittedCall[Nothing, Nothing]) -> None:
    with call.state.database.writing() as connection:
        users.remove_user(connection, call.actor, call.path["user"])


def _list_events(call: AdmittedCall[Nothing, EventsQuery]) -> Events:
    query = call.query
    with call.state.database.reading() as connection:
        device_id = None if query.device is None else devices.find(connection, query.device)["id"]
        found = device_events.events_after(connection, query.after, query.limit, device_id)
    return Events(events=[DeviceEvent(**one) for one in found])


def _list_audit(call: AdmittedCall[Nothing, Since]) -> Audit:
    if call.query.after < 0:
        raise NotFound("expected `after` to be at least 0; the audit record is read from its beginning")
    with call.state.database.reading() as connection:
        return Audit(
            entries=[AuditEntry(**one) for one in users.audit_entries(connection, call.query.after, call.query.limit)]
        )


TABLE: Table = (
    Operation("GET", "/devices", "listDevices", "The devices", "viewer", _list_devices, Devices,
              query=DevicesQuery),
    Operation("GET", "/devices/{device}", "showDevice", "One device, by id or name", "viewer", _show_device,
              DeviceDetails),
    Operation("PUT", "/devices/{device}/labels", "labelDevice", "Set a device's labels", "operator", _label_device,
              body=LabelsBody),
    Operation("PUT", "/devices/{device}/release", "assignDevice", "Choose a device's release", "operator",
              _assign_device, body=AssignBody),
    Operation("POST", "/devices/{device}/revoke", "revokeDevice", "Revoke a device", "operator", _revoke_device),
    Operation("GET", "/devices/{device}/history", "deviceHistory", "A device's statistics", "viewer", _device_history,
              History, query=HistoryQuery),
    Operation("POST", "/devices/{device}/questions", "askDevice", "Ask a device to explain a request", "viewer",
              _ask_device, Question, body=QuestionBody),
    Operation("GET", "/questions/{question}", "showQuestion", "A question and its answer", "viewer", _show_question,
              Question),
    Operation("GET", "/groups", "listGroups", "The groups", "viewer", _list_groups, Groups),
    Operation("PUT", "/groups/{group}", "putGroup", "Create or change a group", "operator", _put_group,
              body=GroupBody),
    Operation("DELETE", "/groups/{group}", "dropGroup", "Delete a group", "operator", _drop_group),
    Operation("PUT", "/groups/{group}/release", "assignGroup", "Choose the release of a group's devices", "operator",
              _assign_group, body=AssignBody),
    Operation("GET", "/tokens", "listTokens", "The enrolment tokens", "operator", _list_tokens, Tokens),
    Operation("POST", "/tokens", "addToken", "Create a one-time enrolment token", "operator", _add_token, NewToken,
              body=TokenBody),
    Operation("DELETE", "/tokens/{token}", "dropToken", "Delete an unused token", "operator", _drop_token),
    Operation("GET", "/users", "listUsers", "The users", "operator", _list_users, Users),
    Operation("POST", "/users/{user}", "addUser", "Add a user", "operator", _add_user, NewUser, body=UserBody),
    Operation("DELETE", "/users/{user}", "removeUser", "Remove a user", "operator", _remove_user),
    Operation("GET", "/events", "listEvents", "Events of devices", "viewer", _list_events, Events,
              query=EventsQuery),
    Operation("GET", "/audit", "listAudit", "Actions of users", "operator", _list_audit, Audit, query=Since),
)  # fmt: skip
"""The operations of this module."""

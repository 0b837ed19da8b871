"""The operations on shadow releases."""

from __future__ import annotations

import json
from collections.abc import Sequence as Many
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from upwell.fleet.api.device_and_user_operations import Sequence, Text
from upwell.fleet.api.operation_table import AdmittedCall, Given, Nothing, Operation, Table, Taken
from upwell.fleet.registry import groups, shadow_releases
from upwell.fleet.registry.device_presence import SILENT_POLLS
from upwell.fleet.registry.devices import Stored, labels_of
from upwell.fleet.rollout.wave_plan import RolloutDevice, Wave, deal
from upwell.shared.errors import InvalidRequest


class ShadowBody(Taken):
    """Some devices of a group, or of those that match a CEL expression, which are to run a shadow release."""

    release: Annotated[Sequence, Field(ge=1)]
    group: Text | None = None
    where: Annotated[str, StringConstraints(min_length=1, max_length=1000)] | None = None
    devices: Annotated[int, Field(ge=1, le=1000)] = 1


class ShadowBegun(Given):
    """The ids of the devices that run the shadow release."""

    devices: list[str]


class ShadowEntry(Given):
    """A shadow release, the number of its devices, and the number of its lines so far."""

    release: int
    devices: int
    lines: int


class Shadows(Given):
    """All shadow releases."""

    shadows: list[ShadowEntry]


class LinesQuery(Taken):
    """Lines after number `after`, up to a maximum."""

    after: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1, le=1000)] = 1000


class ShadowLines(Given):
    """Lines of a request log; pass `next` to get those that follow, 0 at the end."""

    lines: list[dict[str, Any]]
    next: int


def _begin(call: AdmittedCall[ShadowBody, Nothing]) -> ShadowBegun:
    body, presence = call.body, call.state.presence
    if (body.group is None) == (body.where is None):
        raise InvalidRequest("expected one of `group` and `where`")

    def choose(devices: Many[Stored]) -> list[str]:
        latest = call.now_unix_s - SILENT_POLLS * presence.poll_s
        candidates = [
            RolloutDevice(one["id"], labels_of(one), (presence.last_seen(one) or 0.0) >= latest) for one in devices
        ]
        return [*deal(f"shadow {body.release}", [Wave("", count=body.devices)], candidates)]

    with call.state.database.writing() as connection:
        expression = body.where or groups.find_group(connection, str(body.group))["expression"]
        return ShadowBegun(devices=shadow_releases.begin(connection, call.actor, body.release, expression, choose))


def _list(call: AdmittedCall[Nothing, Nothing]) -> Shadows:
    with call.state.database.reading() as connection:
        found = shadow_releases.shadows(connection)
    return Shadows(shadows=[ShadowEntry(release=one, devices=count, lines=lines) for one, count, lines in found])


def _lines(call: AdmittedCall[Nothing, LinesQuery]) -> ShadowLines:
    query = call.query
    with call.state.database.reading() as connection:
        rows = shadow_releases.lines_of(connection, _release(call.path["release"]), query.after, query.limit)
    more = rows[-1]["id"] if len(rows) == query.limit else 0
    return ShadowLines(lines=[json.loads(one["line"]) for one in rows], next=more)


def _end(call: AdmittedCall[Nothing, Nothing]) -> None:
    with call.state.database.writing() as connection:
        shadow_releases.end(connection, call.actor, _release(call.path["release"]))


def _release(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 17):
        raise InvalidRequest(f"expected the sequence number of a release, got {text!r}")
    return int(text)


TABLE: Table = (
    Operation("GET", "/shadows", "listShadows", "Shadow releases", "viewer", _list, Shadows),
    Operation("POST", "/shadows", "beginShadow", "Run a shadow release on devices", "operator", _begin, ShadowBegun,
              body=ShadowBody),
    Operation("GET", "/shadows/{release}/lines", "showShadowLines", "The log of a shadow release", "viewer", _lines,
              ShadowLines, query=LinesQuery),
    Operation("DELETE", "/shadows/{release}", "endShadow", "End a shadow release", "operator", _end),
)  # fmt: skip
"""The operations of this module."""

"""Releases that run beside: who is asked to, what of their lines is kept, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest

from tests.fleet_service import FakeDevice, Service, service
from upwell.fleet.registry import shadow_releases
from upwell.rpc.opamp.v1 import opamp_pb2
from upwell.shared.opamp import SHADOW, WISH_FILE

LINE = {"t_s": 1.0, "model": "digits", "size_bytes": 64, "hardness": {"margin": 0.4}, "tags": {"ward": "7"}}


@pytest.fixture
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("fleet")) as running:
        yield running


def said(body: Any) -> opamp_pb2.CustomMessage:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return opamp_pb2.CustomMessage(capability=SHADOW, type="lines", data=data)


def wished(device: FakeDevice) -> dict[str, Any]:
    return dict(json.loads(device.poll().remote_config.config.config_map[WISH_FILE].body))


def test_lines_of_what_was_asked_for_are_kept_without_tags(fleet: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_releases, "MOST_LINES", 3)
    device, other = fleet.enrolled("one"), fleet.enrolled("two")
    assert wished(device)["shadow"] is None
    started = fleet.do("POST", "/shadows", {"release": 8, "where": 'name == "one"'})
    assert len(started["devices"]) == 1
    assert (wished(device)["shadow"], wished(other)["shadow"]) == (8, None)
    for release, sender in ((8, device), (9, device), (8, other)):
        sender.poll(custom_message=said({"release": release, "lines": [LINE, LINE], "problem": ""}))
    kept = fleet.get("/shadows/8/lines")
    assert kept == {"lines": [{name: one for name, one in LINE.items() if name != "tags"}] * 2, "next": 0}
    assert fleet.get("/shadows") == {"shadows": [{"release": 8, "devices": 1, "lines": 2}]}
    device.poll(custom_message=said({"release": 8, "lines": [LINE, LINE], "problem": "it is too slow"}))
    assert len(fleet.get("/shadows/8/lines")["lines"]) == 3
    assert fleet.get("/shadows/8/lines?after=1&limit=1")["next"] == 2
    assert "it is too slow" in json.dumps(fleet.get("/events?after=-1"))
    monkeypatch.setattr(shadow_releases, "MOST_LINES", 2)  # as if another replica had added some at the same time
    device.poll(custom_message=said({"release": 8, "lines": [LINE, LINE], "problem": ""}))
    assert len(fleet.get("/shadows/8/lines")["lines"]) == 3
    fleet.do("DELETE", "/shadows/8")
    assert wished(device)["shadow"] is None
    assert fleet.get("/shadows") == {"shadows": [{"release": 8, "devices": 0, "lines": 3}]}


@pytest.mark.parametrize(
    "body",
    [
        b"\x00", {}, {"release": 0, "lines": []}, {"release": 8, "lines": [{}]}, {"release": 8, "lines": {"a": 1}},
        {"release": 8, "lines": [{**LINE, "surprise": 1}]}, {"release": 8, "lines": [{**LINE, "t_s": 1e999}]},
        {"release": 8, "lines": [LINE] * 1001}, {"release": 8, "lines": [], "problem": "x" * (64 << 10)},
    ],
)  # fmt: skip
def test_what_are_no_lines_is_refused_whole(fleet: Service, body: Any) -> None:
    device = fleet.enrolled("one")
    fleet.do("POST", "/shadows", {"release": 8, "where": "true"})
    assert device.send(device.message(custom_message=said(body)).SerializeToString()).status == HTTPStatus.BAD_REQUEST
    assert fleet.get("/shadows/8/lines")["lines"] == []


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"release": 8}, HTTPStatus.BAD_REQUEST, "one of `group` and `where`"),
        ({"release": 8, "where": "name =="}, HTTPStatus.BAD_REQUEST, "the expression"),
        ({"release": 8, "where": 'name == "nobody"'}, HTTPStatus.BAD_REQUEST, "no device matches"),
        ({"release": 0, "where": "true"}, HTTPStatus.BAD_REQUEST, "release"),
        ({"release": 8, "group": "none"}, HTTPStatus.NOT_FOUND, "no group"),
        (
            {"release": 9, "where": "true"},
            HTTPStatus.CONFLICT,
            "device one already runs shadow release 7; end that first",
        ),
    ],
)
def test_a_wrong_wish_is_refused_and_says_why(fleet: Service, body: Any, status: int, says: str) -> None:
    fleet.enrolled("one")
    fleet.do("POST", "/shadows", {"release": 7, "where": "true"})
    found, problem = fleet.call("POST", "/shadows", body)
    assert (found, says in problem["detail"]) == (status, True), problem
    assert fleet.call("DELETE", "/shadows/8")[0] == HTTPStatus.NOT_FOUND
    assert fleet.call("GET", "/shadows/x/lines")[0] == HTTPStatus.BAD_REQUEST

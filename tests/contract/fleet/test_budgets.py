"""Budgets over the service's own sockets: set, shared out by what devices say, told to them, taken back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update

from tests.fleet_service import FakeDevice, Service, service
from upwell.fleet.budget.budget_store import solve_all
from upwell.fleet.storage.tables import BUDGETS, ROLLOUTS
from upwell.rpc.opamp.v1 import opamp_pb2
from upwell.shared.opamp import STATISTICS, WISH_FILE

STEEP = [(0.0, 0.4), (0.2, 0.1), (1.0, 0.0)]
FLAT = [(0.0, 0.05), (1.0, 0.0)]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Service]:
    with service(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("empty")) as running:
        yield running


def says(
    device: FakeDevice, curve: list[tuple[float, float]], sent: int = 0, since_unix_s: float = 5.0, **others: Any
) -> None:
    """The device says what its model is asked: ten requests a second, each of 1000 bytes."""
    demand = {"requests_per_s": 10.0, "request_bytes": 1000.0, "wanted": 1.0,
              "shares": [share for share, _ in curve], "risks": [risk for _, risk in curve], **others}  # fmt: skip
    body = {
        "release": None,
        "since_unix_s": since_unix_s,
        "counts": {"uplink_bytes": sent},
        "demand": {"digits": demand},
    }
    message = opamp_pb2.CustomMessage(capability=STATISTICS, type="counted", data=json.dumps(body).encode())
    device.poll(custom_message=message)


def solve(fleet: Service, now_unix_s: float | None = None) -> None:
    """What the service does by itself within a minute."""
    fleet.server._upkeep._write()
    with fleet.fleet.state.database.writing() as connection:
        solve_all(connection, now_unix_s or time.time(), 0.0)


def told(device: FakeDevice) -> dict[str, Any]:
    """The wish that the device is sent, however often it was."""
    heard = device.poll(remote_config_status=opamp_pb2.RemoteConfigStatus(last_remote_config_hash=b"none"))
    found: dict[str, Any] = json.loads(heard.remote_config.config.config_map[WISH_FILE].body)
    return found


def test_a_fifth_of_all_goes_to_the_device_that_gains_most_from_it(fleet: Service) -> None:
    steep, flat = fleet.enrolled("steep", site="a"), fleet.enrolled("flat", site="a")
    other = fleet.enrolled("other", site="b")
    for device, curve in ((steep, STEEP), (flat, FLAT), (other, STEEP)):
        says(device, curve)
    assert told(steep)["shares"] == {}
    fleet.do("PUT", "/budgets/site", {"where": "labels.site == 'a'", "cloud_share": 0.2})
    solve(fleet)
    assert (told(steep)["shares"], told(flat)["shares"]) == ({"digits": 0.4}, {"digits": 0.0})
    assert told(steep)["statistics_s"] == 300.0
    assert (told(other)["shares"], told(other)["statistics_s"]) == ({}, 900.0)
    shown = fleet.get("/budgets/site")
    assert shown["result"]["cloud_share"] == pytest.approx(0.2)
    assert {one["name"]: one["shares"] for one in shown["devices"]} == {
        "steep": {"digits": 0.4}, "flat": {"digits": 0.0}
    }  # fmt: skip
    assert fleet.get("/devices/steep")["shares"] == {"digits": 0.4}
    says(flat, [(0.0, 0.9), (1.0, 0.0)])
    solve(fleet)
    assert fleet.get("/devices/flat")["shares"] == {"digits": 0.2}, "it was solved anew"
    fleet.do("DELETE", "/budgets/site")
    assert told(flat)["shares"] == {}
    assert [one["action"] for one in fleet.get("/audit")["entries"]][-2:] == ["put budget", "drop budget"]


def test_a_device_is_told_no_more_than_it_wants_and_of_two_budgets_the_tighter(fleet: Service) -> None:
    device, rest = fleet.enrolled("one"), fleet.enrolled("two")
    says(device, STEEP, wanted=0.1)
    says(rest, FLAT)
    fleet.do("PUT", "/budgets/half", {"where": "true", "cloud_share": 0.5})
    solve(fleet)
    assert fleet.get("/devices/one")["shares"]["digits"] == pytest.approx(0.145), "a quarter and two points more"
    assert fleet.get("/devices/two")["shares"]["digits"] == pytest.approx(0.855), "the rest"
    fleet.do("PUT", "/budgets/tight", {"where": "name == 'two'", "max_risk": 0.04})
    solve(fleet)
    assert fleet.get("/devices/two")["shares"]["digits"] == pytest.approx(0.2)


def test_of_bytes_in_a_month_what_is_left_is_shared_out(fleet: Service) -> None:
    device = fleet.enrolled("one")
    says(device, STEEP)
    january_s, day_s = 1893456000.0, 86400.0  # 2030-01-01
    fleet.do("PUT", "/budgets/month", {"where": "true", "uplink": {"size_bytes": 31 * 86400 * 2000, "period": "month"}})
    with fleet.fleet.state.database.writing() as connection:  # as if it had been set when the month began
        connection.execute(update(BUDGETS).values(created_unix_s=january_s))
    solve(fleet, january_s + 1)
    assert fleet.get("/devices/one")["shares"]["digits"] == pytest.approx(0.2), "2000 bytes/s of 10,000"
    says(device, STEEP, sent=16 * 86400 * 2000)
    solve(fleet, january_s + day_s)
    shown = fleet.get("/budgets/month")
    assert shown["spent_bytes"] == 16 * 86400 * 2000
    assert fleet.get("/devices/one")["shares"]["digits"] == pytest.approx(0.1), "half is left for 30 of 31 days"
    solve(fleet, january_s + 31 * day_s + 1)
    assert fleet.get("/budgets/month")["spent_bytes"] == 0
    assert fleet.get("/devices/one")["shares"]["digits"] > 0.2, "a new month, and a shorter one"


def test_a_curve_that_no_device_knows_is_given_with_the_budget_and_without_any_shares_are_equal(fleet: Service) -> None:
    devices = [fleet.enrolled(name) for name in ("a", "b")]
    for device in devices:
        says(device, [])
    fleet.do("PUT", "/budgets/even", {"where": "true", "cloud_share": 0.3})
    solve(fleet)
    assert [fleet.get(f"/devices/{name}")["shares"]["digits"] for name in "ab"] == [0.3, 0.3]
    body = {"where": "true", "max_risk": 0.2, "curves": {"digits": [[0.0, 0.3], [0.5, 0.1], [1.0, 0.05]]}}
    fleet.do("PUT", "/budgets/even", body)
    solve(fleet)
    assert fleet.get("/budgets/even")["result"]["risk"] == pytest.approx(0.2)
    assert sum(fleet.get(f"/devices/{name}")["shares"]["digits"] for name in "ab") == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"where": "true"}, "expected one of `cloud_share`"),
        ({"where": "true", "cloud_share": 0.1, "max_risk": 0.1}, "expected one of `cloud_share`"),
        ({"cloud_share": 0.1}, "expected one of `group`"),
        ({"where": "labels.", "cloud_share": 0.1}, "expression"),
        ({"where": "true", "cloud_share": 1.5}, "less than or equal to 1"),
        ({"where": "true", "cloud_share": 0.1, "curves": {"m": [[0.5, 0.1]]}}, "expected 0"),
        ({"where": "true", "cloud_share": 0.1, "curves": {"m": [[0, 0.1, 3]]}}, "at most 2"),
        ({"group": "none", "cloud_share": 0.1}, "no group"),
    ],
)
def test_a_wrong_budget_is_refused_and_nothing_of_it_is_stored(empty: Service, body: Any, words: str) -> None:
    status, found = empty.call("PUT", "/budgets/wrong", body)
    assert status in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND)
    assert words in found["detail"]
    assert empty.get("/budgets") == {"budgets": []}


@pytest.mark.parametrize(
    "demand", [{"digits": 7}, {"digits": {"requests_per_s": -1}}, {"digits": {"shares": [0.5]}}, 5]
)
def test_demand_that_makes_no_sense_is_left_out_and_the_others_get_theirs(fleet: Service, demand: Any) -> None:
    wrong, right = fleet.enrolled("wrong"), fleet.enrolled("right")
    body = {"release": None, "since_unix_s": 5.0, "counts": {"uplink_bytes": "many"}, "demand": demand}
    message = opamp_pb2.CustomMessage(capability=STATISTICS, type="counted", data=json.dumps(body).encode())
    wrong.poll(custom_message=message)
    says(right, STEEP)
    fleet.do("PUT", "/budgets/site", {"where": "true", "cloud_share": 0.2})
    solve(fleet)
    assert (fleet.get("/devices/right")["shares"], fleet.get("/devices/wrong")["shares"]) == ({"digits": 0.2}, {})


def test_a_device_that_says_impossible_numbers_of_bytes_does_not_end_the_sharing(fleet: Service) -> None:
    device = fleet.enrolled("one")
    fleet.do("PUT", "/budgets/month", {"where": "true", "uplink": {"size_bytes": 1000, "period": "month"}})
    for turn in range(4):
        says(device, STEEP, sent=2**62 - 1 - turn, since_unix_s=float(turn))
        solve(fleet)
    assert fleet.get("/budgets/month")["spent_bytes"] == 2**62
    assert fleet.get("/devices/one")["shares"] == {"digits": 0.0}


@pytest.mark.slow
def test_a_roll_out_that_cannot_be_read_does_not_end_the_sharing(tmp_path: Path) -> None:
    with service(tmp_path, poll="1s") as fleet:
        values = {
            "id": "damaged", "release": 1, "expression": "true", "phase": "running", "state": {}, "statistics_id": 0,
            "is_followed": True, "created_by": "test", "created_unix_s": 0.0,
        }  # fmt: skip
        with fleet.fleet.state.database.writing() as connection:
            connection.execute(insert(ROLLOUTS).values(**values))
        fleet.do("PUT", "/budgets/all", {"where": "true", "cloud_share": 0.2})
        end_s = time.monotonic() + 15.0
        while fleet.get("/budgets/all")["result"] is None:
            assert time.monotonic() < end_s
            time.sleep(0.1)

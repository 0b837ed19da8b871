"""When a kept case may be sent: never in the way of a live request, and not to a cloud that is left alone."""

from __future__ import annotations

import time
import types
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from tests.faults.stalling import serving, uplink_of
from tests.unit.edge.agents import CLOUD_MODEL, MAX_MESSAGE_BYTES, MODEL, edge_model, policy, rows_of
from upwell.edge.models.edge_model import ServedModel
from upwell.edge.policy import router_service
from upwell.edge.policy.router_service import RouterService
from upwell.edge.spool import spool_drainer as sender_module
from upwell.edge.spool.spool_drainer import PATIENCE_S, QUIET_S, SpoolSender
from upwell.edge.spool.spooled_request import Later
from upwell.edge.uplink.egress import EgressForbidden
from upwell.edge.uplink.uplink import UplinkSettings
from upwell.shared.config.security import ClientSecurity
from upwell.shared.errors import ModelFailed, Refused
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.fake_dataplane import EXAMPLE, FakeDataplane
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind
from upwell.shared.routing.decide.router_state import (
    LINK,
    CloudAnswered,
    CloudCallFailed,
    CloudDropped,
    CloudHeld,
    CloudSent,
)
from upwell.shared.routing.estimators.circuit_breaker import Breaker
from upwell.shared.routing.reasons import Reason

NOWHERE = "127.0.0.1:9"
CASE = InferRequest(CLOUD_MODEL, rows_of((0.4, 0.3, 0.3)), id="a")


class Clock:
    """The monotonic clock of cell and sender."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (sender_module, router_service):
        monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=made.monotonic, time=lambda: 1.7e9))
    return made


@pytest.fixture
def cell(clock: Clock) -> RouterService:
    return RouterService(policy("defaults: {budget: {cloud_requests: 1/day}}"))


@pytest.fixture
def sender(cell: RouterService) -> Iterator[SpoolSender]:
    uplink = uplink_of(cell, UplinkSettings(NOWHERE, ClientSecurity(), MAX_MESSAGE_BYTES))
    yield SpoolSender(cell, uplink, {MODEL: ServedModel(MODEL, edge_model(), CLOUD_MODEL)})
    uplink.close()


def live(cell: RouterService, name: str, *, ends: bool = True) -> None:
    """A live request goes up and, perhaps, is answered at once."""
    cell.observe(CloudSent(MODEL, name, 1, 100))
    if ends:
        cell.observe(CloudAnswered(MODEL, 1, 100, 0.01, 0.0, call=name))


def test_it_waits_for_the_live_request_under_way_however_long_that_takes(
    sender: SpoolSender, cell: RouterService, clock: Clock
) -> None:
    assert sender.may_send()
    live(cell, "1", ends=False)
    clock.now_s += 20
    assert not sender.may_send()
    cell.observe(CloudDropped(MODEL, (), "1"))
    assert sender.may_send()


def test_it_waits_a_moment_for_the_next_live_request(sender: SpoolSender, cell: RouterService, clock: Clock) -> None:
    sender.still_allowed(MODEL, {}, CASE)
    with pytest.raises(RemoteError):
        sender.send(CASE, 5.0)
    assert sender.may_send()  # its own message is no live request
    clock.now_s += 0.01
    live(cell, "1")
    assert not sender.may_send()
    clock.now_s += QUIET_S + 0.01
    assert sender.may_send()


def test_live_requests_without_a_pause_do_not_keep_it_waiting_for_ever(
    sender: SpoolSender, cell: RouterService, clock: Clock
) -> None:
    sender.still_allowed(MODEL, {}, CASE)
    with pytest.raises(RemoteError):
        sender.send(CASE, 5.0)
    seen = []
    for number in range(24):
        clock.now_s += 0.2499
        live(cell, str(number))
        seen.append(sender.may_send())
    assert seen == [(number + 1) * 0.2499 > PATIENCE_S for number in range(24)]
    assert seen.index(True) == 20


def test_an_open_breaker_is_waited_for_and_then_a_case_finds_out(
    sender: SpoolSender, cell: RouterService, clock: Clock
) -> None:
    for _ in range(Breaker.FAILURES):
        cell.observe(CloudCallFailed(MODEL, Reason.CLOUD_UNAVAILABLE))
    assert cell.state.breakers[LINK].is_open
    assert not sender.may_send()
    clock.now_s += Breaker.FIRST_WAIT_S
    assert sender.may_send()


def test_a_model_s_open_breaker_holds_the_cases_of_that_model_alone(
    sender: SpoolSender, cell: RouterService, clock: Clock
) -> None:
    for _ in range(Breaker.FAILURES):
        cell.observe(CloudCallFailed(MODEL, Reason.CLOUD_ERROR))
    assert sender.may_send()
    assert set(sender.left_alone()) == {MODEL}
    clock.now_s += Breaker.FIRST_WAIT_S
    assert not sender.left_alone()


def test_cases_wait_as_long_as_the_cloud_says(sender: SpoolSender, cell: RouterService, clock: Clock) -> None:
    cell.observe(CloudHeld(MODEL, 2.0))
    assert sender.may_send()  # of other models
    assert set(sender.left_alone()) == {MODEL}
    clock.now_s += 2.0
    assert not sender.left_alone()


def test_a_case_that_is_refused_says_so_to_live_requests_too(cell: RouterService, clock: Clock) -> None:
    clock.now_s = time.monotonic()  # gRPC's
    with serving(FakeDataplane(failure=Refused("full", retry_after_s=5.0))) as (address,):
        uplink = uplink_of(cell, UplinkSettings(address, ClientSecurity(), MAX_MESSAGE_BYTES))
        sender = SpoolSender(cell, uplink, {MODEL: ServedModel(MODEL, edge_model(), "echo")})
        case = InferRequest("echo", EXAMPLE, id="a")
        assert sender.still_allowed(MODEL, {}, InferRequest("echo", CASE.inputs))
        with pytest.raises(RemoteError, match="full"):
            sender.send(case, 5.0)
        uplink.close()
    assert not cell.state.breakers  # a case may be years old
    assert cell.state.is_held(MODEL, clock.now_s)
    assert not cell.state.is_held(MODEL, clock.now_s + 5.0)


def spent(cell: RouterService) -> float:
    return sum(window.spent for windows in cell.state.budgets.windows.values() for window in windows)


@pytest.mark.parametrize("failure", [None, ModelFailed("broken")])
def test_a_case_is_paid_for_and_waits_where_a_budget_is_spent(
    cell: RouterService, clock: Clock, failure: Exception | None
) -> None:
    clock.now_s = time.monotonic()  # gRPC's
    with serving(FakeDataplane(failure=failure)) as (address,):
        uplink = uplink_of(cell, UplinkSettings(address, ClientSecurity(), MAX_MESSAGE_BYTES))
        sender = SpoolSender(cell, uplink, {})
        case = InferRequest("echo", EXAMPLE, id="a")
        assert sender.still_allowed("echo", {}, case)
        with nullcontext() if failure is None else pytest.raises(RemoteError):
            sender.send(case, 5.0)
        assert spent(cell) == 1.0
        with pytest.raises(Later, match="budget"):
            sender.send(case, 5.0)
        uplink.close()


@pytest.mark.parametrize("endpoint", [NOWHERE, f"http://{NOWHERE}"])
def test_a_case_of_which_nothing_has_left_costs_nothing(cell: RouterService, clock: Clock, endpoint: str) -> None:
    clock.now_s = time.monotonic()  # gRPC's
    uplink = uplink_of(cell, UplinkSettings(endpoint, ClientSecurity(), MAX_MESSAGE_BYTES))
    sender = SpoolSender(cell, uplink, {MODEL: ServedModel(MODEL, edge_model(), CLOUD_MODEL)})
    assert sender.still_allowed(MODEL, {}, CASE)
    for _ in range(2):
        with pytest.raises(RemoteError) as caught:
            sender.send(CASE, 5.0)
        assert caught.value.kind is RemoteErrorKind.UNAVAILABLE
    cell.replace_policy(
        policy("{defaults: {budget: {cloud_requests: 1/day}}, rules: [{name: no, match: {}, egress: deny}]}")
    )
    with pytest.raises(EgressForbidden):
        sender.send(CASE, 5.0)
    assert spent(cell) == 0.0
    uplink.close()


def test_a_case_of_a_model_that_is_no_longer_served_is_judged_too(sender: SpoolSender, cell: RouterService) -> None:
    assert sender.still_allowed("former", {}, CASE)
    cell.replace_policy(policy("rules: [{name: no, match: {model: former}, egress: deny}]"))
    assert not sender.still_allowed("former", {}, CASE)
    assert sender.still_allowed(MODEL, {}, CASE)

"""The router's state under many threads, and the only lines that it logs."""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.edge.agents import policy
from upwell.edge.policy.router_service import ModelChange, RouterService
from upwell.shared.routing.decide.router_state import (
    LINK,
    CloudAnswered,
    CloudCallFailed,
    Decision,
    EdgeRan,
    Scored,
    Signals,
)
from upwell.shared.routing.estimators.circuit_breaker import Breaker
from upwell.shared.routing.policy.compiled_policy import RequestFacts
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.settings import ModelPair
from upwell.shared.routing.reasons import Reason

UP = "defaults: {deadline: 10s}\nrules: [{name: up, match: {}, route: cloud}]"


def request() -> Signals:
    """A request that arrives now."""
    return Signals(RequestFacts("m", {}, 10, time.time()), (10,), time.monotonic())


def probing_cell() -> RouterService:
    """A cell of which the breaker lets a probe through."""
    cell = RouterService(policy(UP))
    for _ in range(Breaker.FAILURES):
        cell.observe(CloudCallFailed("m", Reason.CLOUD_UNAVAILABLE))
    limit_s = time.monotonic() + 5
    while cell.state.breakers[LINK].open_until_s > time.monotonic():
        assert time.monotonic() < limit_s
    return cell


def test_of_many_that_ask_at_once_one_gets_the_probe_and_nobody_waits_for_ever() -> None:
    cell = probing_cell()
    start, decisions = threading.Barrier(16), list[Decision]()

    def ask() -> None:
        start.wait()
        decisions.append(cell.decide(request()))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(decisions) == 16
    assert sorted(decision.probes for decision in decisions) == [()] * 15 + [(LINK,)]
    assert sum(bool(decision.up_rows) for decision in decisions) == 1
    assert {decision.reason for decision in decisions if not decision.up_rows} == {Reason.BREAKER_OPEN}


def test_candidates_that_stay_count_among_those_of_late() -> None:
    """Otherwise only those that the link carried would say what its time is worth."""
    cell = RouterService(policy("defaults: {deadline: 1s, hard: {measure: margin, below: 0.9}}"))
    for _ in range(Breaker.FAILURES):
        cell.observe(CloudCallFailed("m", Reason.CLOUD_UNAVAILABLE))
    scored = replace(request(), scored_rows=(0,), hardness=(0.5,))
    assert cell.decide(scored).reason is Reason.BREAKER_OPEN
    ((candidate,),) = (price.recent for price in cell.state.bid_prices.values())
    assert (candidate.score, candidate.size_bytes) == (-0.5, 10)


def test_a_decision_that_is_given_back_earns_no_hedge() -> None:
    """Otherwise a busy device, where requests are decided about twice, would hedge twice its share."""
    cell = RouterService(policy(UP.replace("10s", "10s, hedge: {at_most: 5%}")))
    cell.decide(request())
    earned = cell.state.hedges["m"].level
    assert earned > 0
    cell.give_back(cell.decide(request()))
    assert cell.state.hedges["m"].level == pytest.approx(earned)


def test_no_outcome_is_lost_between_threads() -> None:
    cell = RouterService(policy(UP))

    def learn(index: int) -> None:
        for _ in range(100):
            cell.observe(EdgeRan(f"m{index}", 1, 0.001))
            cell.decide(request())

    threads = [threading.Thread(target=learn, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert {name: len(times.windows[1].samples_s) for name, times in cell.state.edge.items()} == {
        f"m{index}": 64 for index in range(8)
    }


def test_the_state_is_a_picture_that_does_not_change() -> None:
    cell = RouterService(policy(UP))
    before = cell.state
    cell.observe(EdgeRan("m", 1, 0.1))
    assert before.edge == {}
    assert cell.state is not before


def test_a_decision_knows_the_clock() -> None:
    cell = RouterService(policy("defaults: {deadline: 10s}"))
    begin_s = time.monotonic()
    decision = cell.decide(request())
    assert begin_s + 10 <= decision.deadline_s <= time.monotonic() + 10
    assert math.isnan(decision.predicted_edge_s)


def test_giving_up_the_cloud_and_its_return_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    cell = RouterService(policy(UP))
    with caplog.at_level(logging.DEBUG, "upwell"):
        for _ in range(50):
            cell.observe(CloudCallFailed("m", Reason.CLOUD_UNAVAILABLE))
        for _ in range(50):
            cell.observe(CloudAnswered("m", 1, 10, 0.01, 0.0))
    assert [record.getMessage() for record in caplog.records] == [
        "the cloud is failing (the whole service, cloud_unavailable): answering on the device and probing",
        "the cloud answers again (the whole service)",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_a_model_that_fails_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    cell = RouterService(policy(UP))
    with caplog.at_level(logging.DEBUG, "upwell"):
        for _ in range(3):
            cell.observe(CloudCallFailed("m", Reason.CLOUD_MODEL_MISSING))
    assert [record.getMessage() for record in caplog.records] == [
        "the cloud is failing (m, cloud_model_missing): answering on the device and probing"
    ]


def test_why_the_cloud_cannot_be_reached_is_in_the_log_on_one_line(caplog: pytest.LogCaptureFixture) -> None:
    cell = RouterService(policy(UP))
    for _ in range(3):
        cell.observe(CloudCallFailed("m", Reason.CLOUD_CERTIFICATE, detail="it has expired\n" + 1000 * "x"))
    (message,) = caplog.messages
    assert message.startswith("the cloud is failing (the whole service, cloud_certificate: 'it has expired\\nx")
    assert "\n" not in message
    assert len(message) < 650


def test_quick_runs_are_learnt_together_and_a_slow_one_by_the_next_decision() -> None:
    cell = RouterService(Policy())
    for _ in range(3):
        cell.observe(EdgeRan("m", 1, 0.001))
    asked = Signals(RequestFacts("m", {}, 10, 0.0), (10,), time.monotonic())
    assert cell.decide(asked).predicted_edge_s == 0.001
    cell.observe(EdgeRan("m", 1, 0.002))
    assert len(cell.recent.edge["m"].windows[1].samples_s) == 3
    assert len(cell.state.edge["m"].windows[1].samples_s) == 4
    for _ in range(5):
        cell.observe(EdgeRan("m", 1, 0.5))
    assert cell.decide(asked).predicted_edge_s == 0.5
    assert len(cell.recent.edge["m"].windows[1].samples_s) == 9


def test_runs_of_a_model_that_was_replaced_are_forgotten_with_it() -> None:
    cell = RouterService(Policy())
    cell.observe(EdgeRan("m", 1, 0.001))
    cell.replace_models([ModelChange("m", ModelPair(), (), (0.003,))])
    assert [*cell.state.edge["m"].windows[1].samples_s] == [0.003]


def test_a_request_is_judged_by_the_time_of_day_at_which_it_is_about_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was decided on before the rule's hours began."""
    cell = RouterService(policy("rules: [{name: night, match: {hours: '22:00-06:00'}, egress: deny}]"))
    evening_s = 21 * 3600.0 + 59 * 60.0
    asked = Signals(RequestFacts("m", {}, 10, evening_s), (10,), time.monotonic())
    for wall_s, denial in ((evening_s, None), (evening_s + 60.0, Reason.EGRESS_DENIED)):
        monkeypatch.setattr(time, "time", lambda now_s=wall_s: now_s)
        assert cell.judge(asked).denial is denial


CALIBRATED = """
defaults: {hard: {cloud_share: 20%}}
calibrations: [{model: m, measure: margin, below: 0.1, cloud_share: 20%, edge_digest: E, cloud_digest: C1}]
"""


def test_a_calibration_that_no_longer_fits_is_logged_once_and_its_return_too(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("upwell.edge.policy.router_service.MODEL_PAIR_HOLDS_S", 0.0)
    with caplog.at_level(logging.INFO, "upwell"):
        cell = RouterService(policy(CALIBRATED), {"m": ModelPair("E"), "other": ModelPair("F")})
        caplog.clear()
        for _ in range(3):  # two versions behind one endpoint
            for digest in ("C1", "C2", "C2"):
                cell.identify_cloud("m", digest)
    lost, back = (record.getMessage() for record in caplog.records)
    assert lost.startswith("model m: uncalibrated: no calibration fits: the one for cloud_share 20% is for")
    assert "cloud_digest C1, not C2" in lost
    assert back == "model m: a calibration fits"
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_new_version_on_the_device_is_told_of_and_keeps_the_share_of_the_one_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What the version before had brought in its bundle is known to the next one, which brings nothing."""
    brought = policy(CALIBRATED).calibrations
    cell = RouterService(policy("defaults: {hard: {cloud_share: 20%}}"), {"m": ModelPair("E")}, {"m": brought})
    assert cell.misfit("m") == ""
    cell.observe(Scored("m", "defaults/m", 40, 40, ()))
    owed = cell.state.shares["defaults/m"].alpha
    with caplog.at_level(logging.INFO, "upwell"):
        cell.replace_models([ModelChange("m", ModelPair("E2"))])
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "edge_digest E, not E2; that share is kept" in caplog.text
    hard = cell.settings("m").hard
    assert hard is not None
    assert (hard.threshold, hard.calibrated) == (0.1, False)
    assert cell.state.shares["defaults/m"].alpha == owed < 0.2


def test_a_policy_with_a_calibration_that_fits_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    cell = RouterService(policy("defaults: {hard: {cloud_share: 20%}}"), {"m": ModelPair("E")})
    assert cell.misfit("m").startswith("no calibration for cloud_share 20%")
    assert cell.misfit("m") in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, "upwell"):
        cell.replace_policy(policy(CALIBRATED))
    assert (cell.misfit("m"), caplog.messages) == ("", ["model m: a calibration fits"])


def test_a_version_that_comes_while_the_cloud_is_identified_stays() -> None:
    cell: Any = RouterService(policy(UP), {"m": ModelPair("old")})
    comes, lock = [ModelChange("m", ModelPair("new"))], cell._lock

    class Late:
        """Whoever waits for the lock gets it after the new version has come."""

        def __enter__(self) -> None:
            if comes:
                cell.replace_models([comes.pop()])
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    cell._lock = Late()
    cell.identify_cloud("m", "above")
    assert cell._model_pairs["m"] == ModelPair("new", "", "above")

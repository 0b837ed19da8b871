"""One request on its way: rows of one request on both sides, failures of either, deadlines that are no use."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.edge.agents import MODEL, SURE, UNSURE, Scene, busy, edge_model, policy, rows_of, scene, sides
from tests.unit.edge.schedulers import PATIENT_S, until
from upwell.edge import Answer
from upwell.edge.models.edge_model import ServedModel
from upwell.edge.observe.flight_recorder import FlightRecorder
from upwell.edge.server.agent_core import AgentCore
from upwell.shared.errors import (
    CloudFailed,
    ConfigError,
    DeadlineExceeded,
    InvalidRequest,
    ModelFailed,
    ModelNotFound,
    NoAllowedRoute,
    Refused,
    Unavailable,
)
from upwell.shared.routing.estimators.circuit_breaker import Breaker
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.reasons import Plan, Reason, Route

LARGE = "defaults: {deadline: 5s, large: {above: 19B}}"  # a row of 12 + 8 bytes is large
UP = "defaults: {deadline: 5s}\nrules: [{name: up, match: {}, route: cloud}]"
STAY = "rules: [{name: stay, match: {}, route: edge}]"
DENY = "rules: [{name: private, match: {}, egress: deny}]"


def facts(answer: Answer) -> tuple[Plan, Route, Reason, bool]:
    return answer.plan, answer.route, answer.reason, answer.degraded


def sent(at: Scene) -> list[list[float]]:
    """The numbers of the rows in each request that the cloud got."""
    return [request.inputs["fp64"].reshape(-1).tolist() for request in at.cloud.requests]


def test_easy_rows_stay() -> None:
    with scene() as at:
        answer = at.infer(rows_of(SURE, SURE))
        assert facts(answer) == (Plan.CASCADE, Route.EDGE, Reason.EASY, False)
        assert (sides(answer), sent(at)) == ("ee", [])
        assert (answer.edge_digest, answer.cloud_digest) == ("sha256:of-the-small-model", "")
        assert answer.timings.uplink_s is None


def test_an_answer_says_how_hard_each_row_was_and_what_the_classes_are_called() -> None:
    with scene("defaults: {deadline: 5s, hard: {measure: max_prob, below: 0.5}}") as at:
        answer = at.infer(rows_of(SURE, UNSURE))
        assert sides(answer) == "ec"
        assert answer.hardness == pytest.approx([0.9, 0.4])
        assert answer.labels == {"fp32": ("ant", "bee", "cat, small")}
        assert (answer.agent, answer.version) == ("agent", version("upwell"))
        alone = at.infer(rows_of(SURE))
        assert alone.hardness == pytest.approx([0.9])
        assert alone.labels == answer.labels


def test_how_long_an_answer_takes_after_giving_the_cloud_up_is_learnt() -> None:
    with scene("defaults: {deadline: 200ms}") as at:
        at.infer(rows_of(SURE))
        assert not len(at.agent.router.state.overruns.recent_s)
        at.cloud.hold()
        assert facts(at.infer(rows_of(UNSURE)))[2] is Reason.CLOUD_DEADLINE
        (overrun_s,) = at.agent.router.state.overruns.recent_s
        assert overrun_s >= 0.0


def test_rows_that_went_up_at_once_have_no_hardness() -> None:
    with scene(UP) as at:
        assert at.infer(rows_of(SURE)).hardness == ()
    with scene("defaults: {deadline: 5s, hard: off}") as at:
        assert at.infer(rows_of(SURE)).hardness == ()
    with scene("defaults: {deadline: 5s}") as at:
        unscored, scored = at.infer(rows_of((math.nan,) * 3, SURE)).hardness
        assert math.isnan(unscored)
        assert scored == pytest.approx(0.85)


def test_the_hard_rows_alone_go_up_and_come_back_in_their_places() -> None:
    with scene("defaults: {deadline: 5s}") as at:
        answer = at.infer(rows_of(SURE, UNSURE, SURE, UNSURE, UNSURE))
        assert facts(answer) == (Plan.CASCADE, Route.MIXED, Reason.HARD, False)
        assert (sides(answer), sent(at)) == ("ececc", [[2, 4, 5]])
        assert [str(route)[0] for route in answer.routes] == list("ececc")


def test_a_score_that_is_not_finite_goes_up_and_is_no_answer_if_it_comes_down_again() -> None:
    with scene("defaults: {deadline: 5s}") as at:
        answer = at.infer(rows_of(SURE, (math.nan, 0.5, 0.5)))
        assert sent(at) == [[2]]
        assert facts(answer) == (Plan.CASCADE, Route.EDGE, Reason.CLOUD_GARBAGE, True)


def test_all_rows_hard_is_a_cloud_answer() -> None:
    with scene("defaults: {deadline: 5s}") as at:
        answer = at.infer(rows_of(UNSURE, UNSURE))
        assert facts(answer) == (Plan.CASCADE, Route.CLOUD, Reason.HARD, False)
        assert (sides(answer), answer.edge_digest) == ("cc", "")
        assert answer.timings.edge_s is not None


def test_large_rows_go_up_without_an_edge_run() -> None:
    with scene(LARGE) as at:
        answer = at.infer(rows_of(SURE, UNSURE))
        assert facts(answer) == (Plan.CLOUD, Route.CLOUD, Reason.LARGE, False)
        assert (sides(answer), sent(at), at.runtime.runs) == ("cc", [[1, 2]], 0)


@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_many_rows_are_answered_each_by_its_side(rows: int) -> None:
    with scene("defaults: {deadline: 5s}") as at:
        answer = at.infer(rows_of(*[UNSURE if row % 3 == 0 else SURE for row in range(rows)]))
        assert sides(answer) == "".join("c" if row % 3 == 0 else "e" for row in range(rows))
        assert not answer.degraded


def test_a_model_whose_request_is_one_whole_goes_up_whole() -> None:
    with scene("defaults: {deadline: 5s}", edge=edge_model(rows=False, leading=3)) as at:
        easy = at.infer(rows_of(SURE, SURE, SURE))
        assert (facts(easy), sides(easy)) == ((Plan.CASCADE, Route.EDGE, Reason.EASY, False), "eee")
        hard = at.infer(rows_of(SURE, UNSURE, SURE))
        assert (facts(hard), sides(hard)) == ((Plan.CASCADE, Route.CLOUD, Reason.HARD, False), "ccc")
        assert (hard.routes, sent(at)) == ((Route.CLOUD,), [[1, 2, 3]])


def test_without_a_cloud_the_device_answers_everything() -> None:
    with AgentCore([ServedModel(MODEL, edge_model(), "")], None, Policy()) as agent:
        answer = agent.infer(MODEL, rows_of(UNSURE))
        assert facts(answer) == (Plan.EDGE, Route.EDGE, Reason.NO_CLOUD, False)


def test_a_model_without_an_edge_side_is_answered_by_the_cloud() -> None:
    with scene("defaults: {deadline: 5s}", device=False) as at:
        answer = at.infer(rows_of(SURE))
        assert facts(answer) == (Plan.CLOUD, Route.CLOUD, Reason.NO_EDGE, False)
        assert sides(answer) == "c"


NO_ROUTE = [
    (DENY, "rule 'private' denies egress and the model has no edge side"),
    (STAY, "rule 'stay' keeps the request on the device and the model has no edge side"),
]


@pytest.mark.parametrize(("text", "message"), NO_ROUTE)
def test_a_policy_that_leaves_no_route_is_told_as_that(text: str, message: str) -> None:
    with scene(text, device=False) as at:
        with pytest.raises(NoAllowedRoute, match=message):
            at.infer(rows_of(SURE))
        assert sent(at) == []


def test_a_model_without_an_edge_side_is_unavailable_while_the_cloud_is_left_alone() -> None:
    with scene(device=False) as at:
        at.cut()
        with pytest.raises(Unavailable, match="not asked for a moment"):
            at.infer(rows_of(SURE))


def test_a_device_that_fails_lets_the_cloud_answer() -> None:
    with scene("defaults: {deadline: 5s}", edge=edge_model(failure="no power")) as at:
        answer = at.infer(rows_of(SURE, UNSURE))
        assert facts(answer) == (Plan.CLOUD, Route.CLOUD, Reason.EDGE_FAILED, False)
        assert (sides(answer), answer.edge_digest) == ("cc", "")


def test_a_device_that_fails_lets_a_slower_cloud_answer_too() -> None:
    with scene("defaults: {deadline: 5s, objective: latency}", edge=edge_model(failure="no power")) as at:
        at.teach(edge_s=0.0001, cloud_s=0.2)
        assert at.infer(rows_of(SURE)).reason is Reason.EDGE_FAILED


@pytest.mark.parametrize("text", [DENY, STAY])
def test_a_device_that_fails_sends_nothing_up_against_the_policy(text: str) -> None:
    with scene(text, edge=edge_model(failure="no power")) as at:
        with pytest.raises(ModelFailed, match="no power"):
            at.infer(rows_of(UNSURE))
        assert sent(at) == []


def test_both_sides_failing_is_an_error_with_the_clouds_reason() -> None:
    with scene("defaults: {deadline: 5s}", edge=edge_model(failure="no power")) as at:
        at.cloud.failure = Refused("full")
        with pytest.raises(Refused, match="cloud_exhausted"):
            at.infer(rows_of(SURE))


@pytest.mark.parametrize("text", ["defaults: {deadline: 5s}", UP])
def test_a_cloud_that_fails_leaves_the_edge_answer_marked(text: str) -> None:
    with scene(text) as at:
        at.cloud.failure = Refused("full")
        answer = at.infer(rows_of(UNSURE, UNSURE))
        assert facts(answer)[1:] == (Route.EDGE, Reason.CLOUD_EXHAUSTED, True)
        assert sides(answer) == "ee"


@pytest.mark.alone
def test_a_cloud_that_is_late_leaves_the_edge_answer_in_time() -> None:
    with scene(UP.replace("5s", "300ms")) as at:
        at.teach(edge_s=0.001)
        at.cloud.hold()
        begin_s = time.monotonic()
        answer = at.infer(rows_of(SURE))
        assert time.monotonic() - begin_s < 0.3
        assert facts(answer) == (Plan.CLOUD, Route.EDGE, Reason.CLOUD_DEADLINE, True)


@pytest.mark.parametrize("text", ["defaults: {deadline: 5s}", UP])
def test_an_error_that_the_policy_asks_for_is_given(text: str) -> None:
    with scene(f"{text}\nmodels: {{model: {{on_cloud_failure: error}}}}") as at:
        at.cloud.failure = Refused("full")
        with pytest.raises(CloudFailed, match="cloud_exhausted"):
            at.infer(rows_of(UNSURE))
        assert at.runtime.runs == (0 if text == UP else 1), "nothing stands in, so nothing runs for it"
        at.cut()
        with pytest.raises(CloudFailed, match="breaker_open"):
            at.infer(rows_of(UNSURE))


def test_a_request_that_ends_in_an_error_is_recorded_with_the_time_that_the_cloud_took(tmp_path: Path) -> None:
    with scene("defaults: {deadline: 5s, on_cloud_failure: error}") as at:
        recorder = at.agent.flight_recorder = FlightRecorder(tmp_path)
        at.cloud.failure = Refused("full")
        with pytest.raises(CloudFailed):
            at.infer(rows_of(UNSURE), id="one")
        trace = recorder.find("one")
        assert 0 < trace["uplink_s"] < trace["took_s"]
        assert trace["error"]["type"] == "CloudFailed"
        at.agent.infer(MODEL, rows_of(SURE), id="two")
        assert recorder.find("two")["uplink_s"] is None


FIRST_WINS = [
    "defaults: {deadline: 1600ms, objective: latency, large: {above: 1B}}",
    "defaults: {deadline: 1600ms, objective: energy, energy: {inference: 1J}, large: {above: 1B}}",
]


@pytest.mark.parametrize("text", FIRST_WINS, ids=["latency", "energy"])
def test_the_first_answer_counts_unless_accuracy_is_wanted(text: str) -> None:
    with scene(text) as at:
        at.teach(edge_s=0.8, cloud_s=0.4)
        at.cloud.hold()
        begin_s = time.monotonic()
        answer = at.infer(rows_of(SURE))
        assert time.monotonic() - begin_s < 1.5, "the cloud would have been waited for until 1575 ms"
        assert facts(answer) == (Plan.CLOUD, Route.EDGE, Reason.EDGE_FASTER, False)


def test_a_cloud_that_a_quick_device_overtakes_has_not_failed() -> None:
    with scene(FIRST_WINS[0]) as at:
        at.teach(edge_s=1.48, cloud_s=1.2)  # so the device starts early, and then is done at once
        at.cloud.hold()
        assert at.infer(rows_of(SURE)).reason is Reason.EDGE_FASTER
        assert not any(breaker.failures for breaker in at.agent.router.state.breakers.values())


def test_a_busy_device_does_not_delay_the_answer_of_the_cloud() -> None:
    with scene("defaults: {deadline: 4s}") as at:
        at.teach(edge_s=9.0, cloud_s=0.02)
        assert at.edge is not None
        with busy(at.edge):
            begin_s = time.monotonic()
            answer = at.infer(rows_of(SURE))
            took_s = time.monotonic() - begin_s
        assert facts(answer) == (Plan.CLOUD, Route.CLOUD, Reason.EDGE_BUSY, False)
        assert took_s < 3.0, "the cloud's answer was there after milliseconds"


def test_a_stand_in_that_waits_for_a_busy_device_does_not_delay_the_answer_of_the_cloud() -> None:
    with scene(UP.replace("5s", "60s")) as at, ThreadPoolExecutor(1) as pool:
        at.teach(edge_s=50.0)
        at.cloud.hold()
        assert at.edge is not None
        queue = at.edge.scheduler.queue
        with busy(at.edge):
            asked = pool.submit(at.infer, rows_of(SURE))
            until(lambda: bool(queue.waiting))
            at.cloud.release()
            answer = asked.result(PATIENT_S)
            assert (queue.waiting, queue.slots, len(queue.running)) == ([], [], 1)
        assert facts(answer) == (Plan.CLOUD, Route.CLOUD, Reason.RULE, False)
        assert at.runtime.runs == 0


def test_a_slow_device_does_not_delay_the_answer_of_the_cloud() -> None:
    with scene("defaults: {deadline: 4s}", edge=edge_model(latency_s=8.0)) as at:
        at.teach(edge_s=8.0, cloud_s=0.02)
        begin_s = time.monotonic()
        answer = at.infer(rows_of(SURE))
        assert time.monotonic() - begin_s < 4.0
        assert (answer.reason, at.runtime.runs) == (Reason.EDGE_BUSY, 0)


def test_a_busy_device_without_a_cloud_refuses_at_once() -> None:
    with scene(f"defaults: {{deadline: 5s}}\n{DENY}") as at:
        at.teach(edge_s=9.0)
        begin_s = time.monotonic()
        with pytest.raises(Refused, match="no allowed route is predicted to answer in time"):
            at.infer(rows_of(SURE))
        assert time.monotonic() - begin_s < 3.0


def test_what_the_device_has_no_time_for_does_not_count_against_the_rate_of_its_source() -> None:
    text = f"defaults: {{deadline: 5s, source: {{tag: camera, rate: 1/h}}}}\n{DENY}"
    with scene(text) as at:
        for _ in range(2):
            at.teach(edge_s=9.0)
            with pytest.raises(Refused, match="no allowed route is predicted to answer in time"):
                at.infer(rows_of(SURE))
        at.agent.router.replace_policy(policy(text.replace("5s", "1h")))
        at.infer(rows_of(SURE))
        with pytest.raises(Refused, match="exceeds its rate"):
            at.infer(rows_of(SURE))


@pytest.mark.parametrize("deadline_s", [0.0, -1.0, -math.inf, math.nan])
def test_a_deadline_that_is_no_use_is_refused_before_anything_runs(deadline_s: float) -> None:
    with scene(UP) as at:
        with pytest.raises((DeadlineExceeded, InvalidRequest)):
            at.infer(rows_of(SURE), deadline_s=deadline_s)
        assert (sent(at), at.runtime.runs) == ([], 0)


def test_a_deadline_of_centuries_is_refused_in_the_file_or_leaves_the_cloud_its_time() -> None:
    try:
        policy("defaults: {deadline: 10000000h}")
    except ConfigError:
        return
    with scene(UP.replace("5s", "10000000h")) as at:
        assert at.infer(rows_of(SURE)).route is Route.CLOUD


def test_callers_with_no_time_do_not_cut_the_others_off() -> None:
    with scene(UP) as at:
        for _ in range(5):
            with suppress(Refused):  # a device that was slow just now is not even asked
                at.infer(rows_of(SURE), deadline_s=0.0019)
        assert at.infer(rows_of(SURE)).route is Route.CLOUD


@pytest.mark.parametrize(("above", "reason"), [("23B", "up"), ("24B", "no_edge")])
def test_the_size_of_a_request_to_the_cloud_alone_is_what_its_tensors_take(above: str, reason: str) -> None:
    text = f"defaults: {{deadline: 5s}}\nrules: [{{name: up, match: {{size: {{above: {above}}}}}, route: cloud}}]"
    with scene(text, device=False) as at:
        answer = at.infer({"bytes": np.array([[b"abcd", b""]], dtype=object), "fp32": np.zeros((1, 3), np.float32)})
        assert str(answer.reason) == {"up": "rule"}.get(reason, reason)


BAD: dict[str, dict[str, Any]] = {
    "missing input": {"fp32": np.ones((1, 3), np.float32)},
    "unknown input": rows_of(SURE) | {"x": np.ones(1)},
    "wrong dtype": rows_of(SURE) | {"fp32": np.ones((1, 3))},
    "wrong shape": rows_of(SURE) | {"fp32": np.ones((1, 4), np.float32)},
    "rows that differ": rows_of(SURE) | {"fp64": np.ones((2, 1))},
    "no rows": {"fp32": np.ones((0, 3), np.float32), "fp64": np.ones((0, 1))},
    "a list": {"fp32": [[1.0, 0.0, 0.0]], "fp64": np.ones((1, 1))},
    "nothing": {},
}


@pytest.mark.parametrize("name", BAD)
def test_a_request_that_does_not_fit_is_refused_and_counted(name: str) -> None:
    with scene(UP) as at:
        with pytest.raises(InvalidRequest):
            at.infer(BAD[name])
        assert (sent(at), at.runtime.runs) == ([], 0)


@pytest.mark.parametrize("elements", [[1, 2], [None], [b"a", 3]])
def test_elements_that_are_no_bytes_are_refused(elements: list[object]) -> None:
    array = np.array([elements], dtype=object)
    with scene(UP, device=False) as at, pytest.raises(InvalidRequest):
        at.infer({"bytes": array})


@pytest.mark.timeout(20)
def test_a_request_that_cannot_be_sent_does_not_keep_the_probe_from_the_others() -> None:
    with scene(UP, device=False) as at:
        at.cut()
        deadline_s = time.monotonic() + 2 * Breaker.LONGEST_WAIT_S
        while at.agent.router.state.breakers[""].open_until_s > time.monotonic():
            assert time.monotonic() < deadline_s
        with pytest.raises(InvalidRequest):
            at.infer({"fp32": np.ones((1, 3), np.complex128)})
        assert at.infer(rows_of(SURE)).route is Route.CLOUD


def test_an_unknown_model_is_named_with_those_that_there_are() -> None:
    with scene() as at, pytest.raises(ModelNotFound, match="no model 'x' here; available: model"):
        at.agent.infer("x", rows_of(SURE))


def test_a_closed_agent_is_unavailable_and_may_be_closed_again() -> None:
    with scene() as at:
        at.agent.close()
        at.agent.close()
        with pytest.raises(Unavailable, match="closed"):
            at.infer(rows_of(SURE))


def test_an_id_is_kept_or_made() -> None:
    with scene(UP) as at:
        assert at.infer(rows_of(SURE), id="mine").id == "mine"
        first, second = at.infer(rows_of(SURE)).id, at.infer(rows_of(SURE)).id
        assert len({first, second, ""}) == 3
        assert [request.id for request in at.cloud.requests] == ["mine", first, second]


def test_tags_reach_the_rules_and_do_not_leave_the_device() -> None:
    text = "defaults: {deadline: 5s}\nrules: [{name: p, match: {tags: {privacy: device}}, egress: deny}]"
    with scene(text) as at:
        kept = at.infer(rows_of(UNSURE), tags={"privacy": "device"})
        assert facts(kept) == (Plan.EDGE, Route.EDGE, Reason.EGRESS_DENIED, False)
        assert sent(at) == []
        at.infer(rows_of(UNSURE), tags={"privacy": "none", "secret": "thing"})
        assert [dict(request.parameters) for request in at.cloud.requests] == [{}]


def test_the_callers_arrays_are_left_as_they_were() -> None:
    with scene("defaults: {deadline: 5s}") as at:
        inputs = rows_of(SURE, UNSURE)
        before = {name: array.copy() for name, array in inputs.items()}
        at.infer(inputs)
        for name, array in inputs.items():
            np.testing.assert_array_equal(array, before[name])

"""What is recorded of a request, and how it is told."""

from __future__ import annotations

import ast
import gc
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.edge.request_traces import NOT_FINITE, ROUTER, STATE, answer, record, request_trace, signals
from upwell.edge.observe.explain_text import meanings, outcome, tell
from upwell.edge.observe.request_trace import (
    LONGEST_ID,
    LONGEST_TAG,
    LONGEST_TEXT,
    MOST_ROWS,
    MOST_TAGS,
    DecisionTrace,
    RequestTrace,
    to_line,
    trace_of,
)
from upwell.shared.errors import Refused
from upwell.shared.routing import reasons
from upwell.shared.routing.decide.router_state import CloudAnswered, CloudCallFailed, RouterState, SplitRoute
from upwell.shared.routing.estimators.circuit_breaker import Breaker
from upwell.shared.routing.flow.flow_actions import CloudFailure
from upwell.shared.routing.reasons import Plan, Reason, Route


def decoded(one: RequestTrace) -> dict[str, Any]:
    line = to_line(one)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    found: dict[str, Any] = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    return found


def text(one: RequestTrace) -> str:
    """What `upwell explain` says."""
    return "\n".join(line for _, lines in tell(decoded(one)) for line in lines)


ASKED = signals({"camera": "dock"})


def test_a_trace_holds_neither_inputs_nor_outputs() -> None:
    inputs, outputs = {"image": np.ones(1000)}, {"scores": np.ones(1000)}
    ended = replace(answer("abc"), outputs=outputs)
    one = trace_of(replace(record("abc", ASKED), inputs=inputs, sent_inputs=inputs), ended, STATE, 1)
    values: Sequence[Any] = one
    assert not any(value is inputs or value is outputs for value in values)
    assert {"id": "abc", "hardness": {"0": 0.8}, "edge_s": 0.01}.items() <= decoded(one).items()
    assert len(to_line(one)) < 3000


def test_a_trace_that_is_kept_is_one_object_for_the_garbage_collector() -> None:
    ended = answer("abc")
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        kept = [trace_of(record("abc", ASKED), ended, STATE, 1000.5) for _ in range(100)]
        assert len(gc.get_objects()) - before < 1.1 * len(kept)
    finally:
        gc.enable()


def named(whole: Any, names: Iterable[str]) -> Any:
    """It with the name of each of these fields in the place of its value."""
    return replace(whole, **{name: f"the {name}" for name in names})


def test_each_value_stands_under_its_name() -> None:
    of_facts, of_done = {"wall_time_s", "model", "tags"}, {"id", "hardness", "edge_s"}
    of_asked = {"row_sizes_bytes", "up_sizes_bytes", "arrived_s", "caller_deadline_s", "edge_ahead"}
    of_asked |= {"has_edge", "has_cloud", "has_scores"}
    of_times = {"total_s", "edge_s", "uplink_s", "cloud_queue_s", "cloud_compute_s"}
    of_answer = {"plan", "route", "reason", "routes", "degraded"}
    of_answer |= {"edge_digest", "accelerator", "edge_state", "cloud_digest", "spool_id"}
    asked = replace(named(ASKED, of_asked), request_facts=named(ASKED.request_facts, of_facts))
    first = named(ROUTER.decide(STATE, ASKED, 1000.0), DecisionTrace._fields)
    done = named(replace(record("abc", ASKED, second=first), signals=asked, first=first), of_done)
    ended = named(replace(answer("abc"), timings=named(answer("abc").timings, of_times)), of_answer)
    one = trace_of(done, ended, STATE, 1000.5, "the policy_digest")._asdict()
    assert one.pop("second")._asdict() == {name: f"the {name}" for name in DecisionTrace._fields}
    assert (one.pop("link"), one.pop("breakers"), one.pop("ended_s")) == (STATE.link, STATE.breakers, 1000.5)
    assert (one.pop("misses"), one.pop("error"), one.pop("uplink_s"), one.pop("link_wait")) == (
        (),
        ("", ""),
        None,
        None,
    )
    assert one == {name: f"the {name.removeprefix('answer_')}" for name in one}


def test_of_an_error_the_type_and_the_text_are_kept() -> None:
    try:
        raise Refused("the device is busy")
    except Refused as error:
        one = trace_of(record("abc", ASKED), error, STATE, 1001.5)
    found = decoded(one)
    assert found["answer"] is None
    assert found["error"] == {"type": "Refused", "text": "the device is busy"}
    assert outcome(found) == ("error", "Refused")
    assert "error Refused: the device is busy" in text(one)
    assert "500.0 ms after the deadline" in text(one)


def test_times_are_told_from_the_arrival() -> None:
    found = decoded(request_trace("a", ended_s=1000.25))
    assert found["took_s"] == pytest.approx(0.25)
    assert found["late_s"] == pytest.approx(-0.75)
    assert found["deadline_s"] == pytest.approx(1.0)
    assert found["caller_deadline_s"] is None


def test_what_is_not_finite_is_null() -> None:
    found = decoded(request_trace("a", hardness=NOT_FINITE))
    assert found["hardness"] == {"0": None, "1": None, "2": None, "3": 0.25}
    assert found["link"]["rtt_s"] is None
    assert "hardness of row 0: not finite" in text(request_trace("a", hardness=NOT_FINITE))


def test_what_a_caller_sends_is_cut() -> None:
    huge = "x" * 1_000_000
    tags = {f"{index} {huge}": huge for index in range(100)}
    sizes = tuple(range(1, 1001))
    one = request_trace(
        huge, signals=signals(tags, sizes), answer=None, error=("Refused", huge),
        hardness=dict.fromkeys(range(1000), 0.5), misses=(CloudFailure(Reason.CLOUD_ERROR, huge),),
    )  # fmt: skip
    found = decoded(one)
    assert len(found["id"]) == LONGEST_ID
    assert len(found["tags"]) == MOST_TAGS
    assert all(len(name) <= LONGEST_TAG >= len(value) for name, value in found["tags"].items())
    assert len(found["error"]["text"]) == len(found["misses"][0]["text"]) == LONGEST_TEXT
    assert (len(found["row_sizes_bytes"]), found["rows"], len(found["hardness"])) == (MOST_ROWS, 1000, MOST_ROWS)
    assert len(to_line(one)) < 10_000


@pytest.mark.parametrize("name", ["\ud800", "\0\x1b[31m", "a\nb", "é", '"}{'])
def test_any_text_can_be_recorded(name: str) -> None:
    found = decoded(request_trace(name, {name: name}))
    assert (found["id"], found["tags"]) == (name, {name: name})


def state_with_cloud() -> RouterState:
    state = STATE
    for index in range(5):
        told = CloudAnswered("digits", 1, 1000 * (index + 1), 0.05, 0.01)
        state = ROUTER.observe(state, told, 999.0 + index * 0.1)
    for _ in range(Breaker.FAILURES):
        state = ROUTER.observe(state, CloudCallFailed("digits", Reason.CLOUD_UNAVAILABLE), 999.9)
    return state


def test_link_and_breakers_are_told() -> None:
    one = request_trace("a", state=state_with_cloud())
    found = decoded(one)
    assert 0 < found["link"]["rtt_s"] < 0.06
    assert found["link"]["age_s"] == pytest.approx(0.612, abs=0.01)
    assert found["breakers_open"] == [""]
    assert "breaker open: the whole service" in text(one)
    assert "link: round trip" in text(one)


def test_a_degraded_answer_is_told_with_the_cloud_s_words() -> None:
    asked = signals(has_cloud=True)
    first = replace(ROUTER.decide(STATE, asked, 1000.0), predicted_cloud_s=0.08, predicted_edge_s=0.01)
    second = replace(first, reason=Reason.HARD, up_rows=(0,), predicted_cloud_s=0.09)
    one = request_trace(
        "a", first=first, second=second, answer=answer("a", Reason.CLOUD_DEADLINE, spool_id="s1"),
        misses=(CloudFailure(Reason.CLOUD_DEADLINE, "no answer in 900 ms"),), hardness={0: 0.1},
    )  # fmt: skip
    told = text(one)
    for part in (
        "hardness of row 0: 0.1",
        "offloaded for hard: rows 0",
        "device: predicted 10.0 ms, 10.0 ms",
        "cloud: predicted 90.0 ms, 20.0 ms",
        "the cloud: cloud_deadline: no answer in 900 ms",
        "reason cloud_deadline: Degraded: the cloud did not answer in time.",
        "degraded",
        "spool id s1",
    ):
        assert part in told


def test_the_threshold_is_the_one_that_the_row_was_held_against() -> None:
    first = ROUTER.decide(STATE, ASKED, 1000.0)
    one = request_trace("a", first=first, second=replace(first, threshold=0.41), hardness={0: 0.5})
    assert decoded(one)["policy"]["threshold"] == 0.41
    assert "hard by margin, threshold 0.41" in text(one)


@pytest.mark.parametrize("threshold", [math.inf, -math.inf])
def test_a_threshold_by_which_all_or_none_are_hard_is_told(threshold: float) -> None:
    """As a `cloud_share` sets it while it pays back what it sent too much, or too little."""
    first = ROUTER.decide(STATE, ASKED, 1000.0)
    one = request_trace("a", first=first, second=replace(first, threshold=threshold), hardness={0: 0.5})
    assert decoded(one)["policy"]["threshold"] is None
    assert "hard by margin, threshold beyond every score" in text(one)


@pytest.mark.parametrize(("kind", "enum"), [("Reason", Reason), ("Plan", Plan), ("Route", Route)])
def test_meanings_are_the_docstrings_of_the_codes(kind: str, enum: Any) -> None:
    found = meanings(kind)
    assert set(found) <= {str(member) for member in enum}
    if kind != "Route":
        assert len(found) == len(enum)
    source = ast.parse(Path(reasons.__file__).read_text(encoding="utf-8"))
    constants = {
        " ".join(node.value.split())
        for node in ast.walk(source)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(found.values()) <= constants


def test_a_flight_of_another_version_is_told_as_far_as_it_goes() -> None:
    told = tell({"id": "a", "time": 1.5, "decisions": [{"plan": "teleport"}], "answer": {"route": "moon"}})
    lines = [line for _, one in told for line in one]
    assert "plan teleport" in lines
    assert "answered by moon" in lines


def test_the_cut_is_told_by_which_rows_went_up() -> None:
    split_route = SplitRoute("digits/c7", 512)
    first = replace(ROUTER.decide(STATE, ASKED, 1000.0), plan=Plan.SPLIT, up_rows=(0,), split_route=split_route)
    one = trace_of(record("abc", ASKED, first=first), answer("abc"), STATE, 1000.5)
    assert decoded(one)["decisions"][0]["way"] == "digits/c7"
    assert "by digits/c7: rows 0, waited for until" in text(one)

"""Conditions of events: what they can read, what is refused when they are loaded, and what happens when they fail."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.pipelines_scenes import rule_on

pytest.importorskip("cel_expr_python")

from upwell.pipelines.events.event_rules import EventRules, FiredEvent
from upwell.pipelines.events.where_condition import ObjectCondition
from upwell.pipelines.frame import FoundObject, Frame, Scene
from upwell.pipelines.steps.geometry import Zones

ZONES = Zones({"door": ((0.4, 0.2), (0.6, 0.2), (0.6, 1.0), (0.4, 1.0)), "back-yard": ((0, 0), (0.1, 0), (0, 0.1))}, {})
MODELS = ("helmet", "vest-v2")
NO_PICTURE = np.zeros((1, 1, 3), np.uint8)
BARE: Mapping[str, Mapping[str, Any]] = {"helmet": {"label": "none", "score": 0.9}}
SAFE: Mapping[str, Mapping[str, Any]] = {"helmet": {"label": "yellow"}, "vest-v2": {"score": 1}}


def person(
    track: int | None = 1, answers: Mapping[str, Mapping[str, Any]] = BARE, label: str = "person", x: float = 0.5
) -> FoundObject:
    box = (x - 0.05, 0.3, x + 0.05, 0.5)
    return FoundObject(label, 0.75, box, track, frozenset({"door"}), answers)


def scene(at_s: float, *objects: FoundObject) -> Scene:
    frame = Frame(int(at_s * 10), at_s, 1e9 + at_s, NO_PICTURE, NO_PICTURE[:, :, 0])
    return Scene(frame, NO_PICTURE, objects, {"helmet": {"label": "crowd"}}, "edge", "confident", False)


def rules_on(text: str, where: str) -> EventRules:
    return EventRules([rule_on(text, name="r", where=where)], ZONES, MODELS, "dock")


@pytest.mark.parametrize(
    "where",
    [
        'object.label == "person" && object.score > 0.7',
        "object.score < 1 && object.track == 1",
        'object.helmet.label == "none" && object.helmet.score > 0',
        'object.answers["helmet"].label in ["none", "white"]',
        '"door" in object.zones',
        "object.box[3] == 0.5",
        "object.dwell_s.door >= 1.5 && object.dwell_s['back-yard'] == 0.0 && object.age_s > 2",
        'frame.helmet.label == "crowd" && frame.objects == 1 && frame.route == "edge" && !frame.degraded',
        "frame.number == 20 && frame.captured_unix_s > 1",
        'pipeline.startsWith("do")',
        "has(object.helmet.label) && !has(object.helmet.colour)",
        'object.label == "person" // and not "a truck"',
    ],
)
def test_a_condition_can_read_object_frame_and_pipeline(where: str) -> None:
    condition = ObjectCondition(where, MODELS, ZONES.polygons, "dock")
    assert condition.holds(person(), scene(2.0, person()), 2.5, {"door": 1.5})


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("object.labl == 'person'", "unknown name object.labl; did you mean object.label?"),
        ("object.helmt.label == 'none'", "unknown name object.helmt.label; did you mean object.helmet?"),
        ("object.answers['helmt'].label == 'none'", "unknown model helmt; did you mean helmet?"),
        ("object.dwell_s.dor > 1", "unknown zone dor; did you mean door?"),
        ("object.dwell_s['back-yrd'] > 1", "unknown zone back-yrd; did you mean back-yard?"),
        ("object.label == 3", "== does not take (string, int) (character 14)"),
        ("object.score > 'high'", "> does not take (double, string)"),
        ("3 in object.zones", "in does not take (int, list(string)) (character 3)"),
        ("object.label", "the expression gives a string; expected true or false"),
        ("object.score + 1", "+ does not take (double, int64)"),
        ("size(object.zones)", "the expression gives a whole number; expected true or false"),
        ("lower(object.label) == 'a'", "unknown function lower; expected one of contains, double, endsWith, has, int, "
         "matches, size, startsWith, string, timestamp, uint"),
        ("object.zones.exists(z, object.zones.exists(y, y == z))",
         "expected at most one of the macros all, exists, exists_one, map and filter"),
        ("!has( object . helmet )", "has(object.helmet) names no field of a model's answer; expected one, as in "
         "has(object.helmet.label)"),
        ("has(frame.route)", "has(frame.route) names no field of a model's answer; expected one, as in "
         "has(frame.MODEL.label)"),
        ("object.label ==", "not a CEL expression: mismatched input 'end of the expression' (character 16)"),
        ("x" * 1001, "the expression has 1001 characters; expected at most 1000"),
        ('object.label == """a"""', "expected a string in single quotes, not triple quotes"),
        ("!" * 500 + "true", None),
        ("(" * 60 + "true" + ")" * 60, "the expression is nested deeper than 32; expected a simpler one"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_when_it_is_loaded(where: str, message: str | None) -> None:
    if message is None:
        ObjectCondition(where, MODELS, ZONES.polygons)
        return
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (the whole text is compared)
        ObjectCondition(where, MODELS, ZONES.polygons)
    assert str(refused.value) == message


def test_a_model_that_is_called_like_a_field_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^a model whose answers are read here must not be called score$"):
        ObjectCondition("true", ["score"])


def test_an_event_happens_where_its_condition_is_true_at_that_instant() -> None:
    rules = rules_on("enter door", 'object.helmet.label == "none"')
    fired = rules.take(scene(0.0, person(1), person(2, SAFE)))
    assert fired == [FiredEvent("r", (person(1),))]
    assert rules.take(scene(1.0, person(1), person(2, BARE))) == [], "2 has entered before"


def test_a_dwell_waits_for_its_condition_as_long_as_the_stay_lasts() -> None:
    rules = rules_on("dwell door 2s", 'object.helmet.label == "none"')
    seen = [rules.take(scene(at_s, person(1, SAFE if at_s < 5 else BARE))) for at_s in range(8)]
    assert [at_s for at_s, fired in enumerate(seen) if fired] == [5]


def test_frames_and_periods_are_said_of_the_objects_for_which_it_is_true() -> None:
    rules = rules_on("frame", 'object.label == "person" && object.helmet.label == "none"')
    some = (person(1), person(None), person(3, label="truck"), person(4, SAFE))
    assert rules.take(scene(0.0, *some)) == [FiredEvent("r", some[:2])]
    assert rules.take(scene(1.0, *some[2:])) == []
    of_the_frame = rules_on("every 10s", "frame.objects == 0")
    assert of_the_frame.take(scene(0.0, person(1))) == []
    assert of_the_frame.take(scene(4.0)) == [FiredEvent("r", ())]
    assert of_the_frame.take(scene(9.0)) == []


def test_dwell_and_age_of_a_track_are_known_to_a_condition() -> None:
    rules = rules_on("exit door", "object.dwell_s.door > 2 && object.age_s >= 3")
    for at_s in range(3):
        rules.take(scene(at_s, person(1), person(2, x=0.5 if at_s == 2 else 0.1)))
    assert rules.take(scene(3.0, person(1, x=0.1), person(2, x=0.1))) == [FiredEvent("r", (person(1, x=0.1),))]


def test_a_condition_that_cannot_be_judged_is_no_match_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    rules = rules_on("frame", 'object.helmet.label == "none"')
    with caplog.at_level(logging.WARNING):
        for at_s in range(3):
            assert rules.take(scene(at_s, person(1, {}), person(2))) == [FiredEvent("r", (person(2),))]
    assert rules.failures == {"r": 3}
    assert [record.getMessage() for record in caplog.records] == [
        'event r: the condition counts as false whenever it cannot be evaluated: Key not found in map : "label"'
    ]


@pytest.mark.parametrize(
    "said", [None, ["none"], {"a": 1.5}, float("nan"), b"none", "\ud800", 2**70, {1, 2}, object(), np.float32(1)]
)
def test_what_a_model_says_may_be_anything(said: object, caplog: pytest.LogCaptureFixture) -> None:
    rules = rules_on("frame", 'object.helmet.label == "none"')
    assert rules.take(scene(0.0, person(1, {"helmet": {"label": said}}), person(2))) == [FiredEvent("r", (person(2),))]
    assert all(record.getMessage().endswith("with the current labels and answers") for record in caplog.records)


def test_a_label_that_is_no_unicode_is_no_match() -> None:
    rules = rules_on("frame", 'object.label != "truck"')
    assert rules.take(scene(0.0, person(label="\ud800"))) == []


def test_a_leave_without_a_frame_can_still_be_judged() -> None:
    rules = rules_on("leave", 'frame.number == 10 && object.helmet.label == "none"')
    rules.take(scene(1.0, person(1), person(2, SAFE)))
    assert rules.end(5.0) == [FiredEvent("r", (person(1),))]

"""Which rules match what, and what follows from those that do."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.unit.routing.asking import policy, request_facts
from upwell.shared.routing.policy.compiled_policy import CompiledPolicy, Verdict


def matches(match: str, timezone: str = "UTC", **about: Any) -> bool:
    """Whether a rule with this `match` applies to that subject."""
    text = f"timezone: {timezone}\nrules: [{{name: r, match: {match}, egress: deny}}]"
    return CompiledPolicy(policy(text)).judge(request_facts(**about)).egress_rule == "r"


TAGS = [
    ("{}", {}, True),
    ("{}", {"any": "thing"}, True),
    ("{tags: {}}", {}, True),
    ("{tags: {a: x}}", {"a": "x"}, True),
    ("{tags: {a: x}}", {"a": "X"}, False),
    ("{tags: {a: x}}", {"a": "x "}, False),
    ("{tags: {a: x}}", {"b": "x"}, False),
    ("{tags: {a: x}}", {}, False),
    ("{tags: {a: ''}}", {}, True),
    ("{tags: {a: ''}}", {"a": ""}, True),
    ("{tags: {a: ''}}", {"a": "x"}, False),
    ("{tags: {a: [x, y]}}", {"a": "y"}, True),
    ("{tags: {a: [x, '']}}", {}, True),
    ("{tags: {a: [x, y]}}", {}, False),
    ("{tags: {a: x, b: y}}", {"a": "x", "b": "y"}, True),
    ("{tags: {a: x, b: y}}", {"a": "x", "b": "z"}, False),
    ("{tags: {a: x, b: ''}}", {"a": "x"}, True),
    ("{tags: {A: x}}", {"a": "x"}, True),
]


@pytest.mark.parametrize(("match", "tags", "expected"), TAGS)
def test_tags_match_exactly_and_a_missing_one_is_empty(match: str, tags: Mapping[str, str], expected: bool) -> None:
    assert matches(match, tags=tags) is expected


MODELS = [("digits", "digits", True), ("digits", "Digits", False), ("[a, digits]", "digits", True), ("[a]", "b", False)]


@pytest.mark.parametrize(("wanted", "model", "expected"), MODELS)
def test_models_match_by_name(wanted: str, model: str, expected: bool) -> None:
    assert matches(f"{{model: {wanted}}}", model=model) is expected


SIZES = [("1KiB", 1024, False), ("1KiB", 1025, True), ("0", 0, False), ("0", 1, True), ("1GB", 999, False)]


@pytest.mark.parametrize(("above", "size_bytes", "expected"), SIZES)
def test_a_size_matches_above_its_bound_only(above: str, size_bytes: int, expected: bool) -> None:
    assert matches(f"{{size: {{above: {above}}}}}", size_bytes=size_bytes) is expected


HOURS = [
    ("08:00-17:00", "08:00", True),
    ("08:00-17:00", "07:59", False),
    ("08:00-17:00", "16:59", True),
    ("08:00-17:00", "17:00", False),
    ("22:00-06:00", "22:00", True),
    ("22:00-06:00", "23:59", True),
    ("22:00-06:00", "00:00", True),
    ("22:00-06:00", "05:59", True),
    ("22:00-06:00", "06:00", False),
    ("22:00-06:00", "21:59", False),
    ("18:00-00:00", "23:59", True),
    ("18:00-00:00", "00:00", False),
    ("00:00-00:00", "00:00", True),
    ("12:00-12:00", "11:59", True),
    ("12:00-12:00", "12:00", True),
    ("12:00-12:01", "12:00", True),
    ("12:00-12:01", "12:01", False),
]


@pytest.mark.parametrize(("span", "time", "expected"), HOURS)
def test_hours_hold_from_the_first_to_before_the_last_also_over_midnight(span: str, time: str, expected: bool) -> None:
    at_s = datetime.fromisoformat(f"2024-05-01T{time}:59+00:00").timestamp()
    assert matches(f"{{hours: '{span}'}}", wall_time_s=at_s) is expected


ZONES = [
    ("Europe/Berlin", "2024-01-15T07:30+00:00", "08:00-09:00", True),  # winter: one hour ahead
    ("Europe/Berlin", "2024-07-15T07:30+00:00", "08:00-09:00", False),  # summer: two
    ("Europe/Berlin", "2024-07-15T06:30+00:00", "08:00-09:00", True),
    ("Asia/Kolkata", "2024-01-15T20:00+00:00", "01:30-01:31", True),  # half an hour, and the next day
    ("America/New_York", "2024-01-15T03:00+00:00", "22:00-22:01", True),  # the day before
    ("Pacific/Kiritimati", "2024-01-15T10:00+00:00", "00:00-00:01", True),  # fourteen hours ahead
    ("Europe/Berlin", "2024-03-31T00:59+00:00", "01:30-02:30", True),  # 01:59, before the clock goes forward
    ("Europe/Berlin", "2024-03-31T01:00+00:00", "01:30-02:30", False),  # 03:00: half of the span does not exist
    ("Europe/Berlin", "2024-10-27T00:30+00:00", "02:00-03:00", True),  # 02:30 for the first time
    ("Europe/Berlin", "2024-10-27T01:30+00:00", "02:00-03:00", True),  # and for the second
    ("Europe/Berlin", "2024-10-27T02:00+00:00", "02:00-03:00", False),
]


@pytest.mark.parametrize(("zone", "instant", "span", "expected"), ZONES)
def test_hours_are_those_of_the_policys_time_zone(zone: str, instant: str, span: str, expected: bool) -> None:
    at_s = datetime.fromisoformat(instant).timestamp()
    assert datetime.fromtimestamp(at_s, ZoneInfo(zone)).tzinfo is not None
    assert matches(f"{{hours: '{span}'}}", timezone=zone, wall_time_s=at_s) is expected


def test_every_key_of_a_match_must_hold() -> None:
    about: dict[str, Any] = {"model": "m", "tags": {"a": "x"}, "size_bytes": 2000, "wall_time_s": 12 * 3600.0}
    match = "{tags: {a: x}, model: m, size: {above: 1kB}, hours: '11:00-13:00'}"
    assert matches(match, **about)
    others: dict[str, Any] = {"model": "n", "tags": {"a": "y"}, "size_bytes": 1000, "wall_time_s": 14 * 3600.0}
    for key, other in others.items():
        assert not matches(match, **(about | {key: other})), key


RULES: tuple[dict[str, Any], ...] = (
    {"name": "elsewhere", "match": {"model": "other"}, "egress": "deny", "route": "edge"},
    {"name": "private", "match": {"tags": {"a": "x"}}, "egress": "deny"},
    {"name": "quick", "match": {"tags": {"a": "x"}}, "set": {"deadline": "10ms"}},
    {"name": "up", "match": {}, "route": "cloud"},
    {"name": "stay", "match": {"tags": {"a": "x"}}, "egress": "deny", "route": "edge", "set": {"deadline": "20ms"}},
)


def test_the_first_that_says_route_or_set_decides_and_every_egress_counts() -> None:
    for rules in itertools.permutations(RULES):
        order = [rule["name"] for rule in rules]
        verdict = CompiledPolicy(policy(json.dumps({"rules": rules}))).judge(request_facts(tags={"a": "x"}))
        decisive = next(rule for rule in rules if rule["name"] in ("quick", "up", "stay"))
        assert verdict.rule == decisive["name"], order
        assert verdict.route == decisive.get("route"), order
        assert verdict.settings.deadline_s == {"quick": 0.01, "up": 1.0, "stay": 0.02}[decisive["name"]], order
        assert verdict.egress_rule == next(name for name in order if name in ("private", "stay"))


def test_without_a_match_the_settings_of_the_model_hold() -> None:
    of = policy("models: {a: {deadline: 5ms}}\nrules: [{name: r, match: {tags: {t: x}}, route: cloud}]")
    compiled = CompiledPolicy(of)
    for model, deadline_s in (("a", 0.005), ("never heard of", 1.0)):
        expected = Verdict(of.settings(model, None), None, "", "")
        assert compiled.judge(request_facts(model=model)) == expected
        assert expected.settings.deadline_s == deadline_s


def test_a_rule_that_forbids_egress_alone_leaves_the_rest_to_the_next() -> None:
    of = policy(
        "rules:\n- {name: private, match: {}, egress: deny}\n- {name: patient, match: {}, set: {deadline: 9s}}\n"
    )
    verdict = CompiledPolicy(of).judge(request_facts())
    assert (verdict.egress_rule, verdict.rule, verdict.settings.deadline_s) == ("private", "patient", 9.0)


def test_judging_twice_says_the_same_and_an_earlier_denial_does_not_stick() -> None:
    compiled = CompiledPolicy(policy("rules: [{name: private, match: {tags: {a: x}}, egress: deny}]"))
    denied, allowed = request_facts(tags={"a": "x"}), request_facts()
    for _ in range(2):
        assert compiled.judge(denied).egress_rule == "private"
        assert compiled.judge(allowed).egress_rule == ""

"""`dropped_denies` against brute force: where it says that nothing is dropped, whatever stayed before stays after."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from upwell.shared.routing.policy.compiled_policy import CompiledPolicy
from upwell.shared.routing.policy.dropped_denies import dropped_denies
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.request_facts import RequestFacts

VALUES = ["", "x", "y", "z"]
HOUR_S = 3600.0
SUBJECTS = [
    RequestFacts(model, {name: value for name, value in (("a", a), ("b", b)) if value is not None}, size, hour * HOUR_S)
    for model, a, b, size, hour in itertools.product(
        ["m", "n", "o"], [None, *VALUES], [None, "x", "y"], [1, 50, 200], [3, 12]
    )
]  # fmt: skip

some_values = st.one_of(st.sampled_from(VALUES), st.lists(st.sampled_from(VALUES), min_size=1, max_size=3, unique=True))
tags = st.dictionaries(st.sampled_from(["a", "b"]), some_values, max_size=2)
matches = st.fixed_dictionaries(
    {},
    optional={
        "tags": tags,
        "unless_tags": tags,
        "model": st.one_of(st.just("m"), st.just(["m", "n"])),
        "size": st.sampled_from([{"above": "10B"}, {"above": "100B"}]),
        "hours": st.sampled_from(["00:00-06:00", "06:00-00:00"]),
    },
)
does = st.sampled_from([{"egress": "deny"}, {"egress": "deny"}, {"route": "edge"}])
rules = st.builds(lambda match, does: {"match": match, **does}, matches, does)


def policy(written: list[dict[str, Any]], zone: str = "UTC") -> Policy:
    named = [{"name": f"r{index}", **rule} for index, rule in enumerate(written)]
    return Policy.model_validate({"rules": named, "timezone": zone})


def kept(of: Policy) -> list[bool]:
    compiled = CompiledPolicy(of)
    return [bool(compiled.judge(request_facts).egress_rule) for request_facts in SUBJECTS]


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(rules, max_size=3), st.lists(rules, max_size=3), st.sampled_from(["UTC", "Asia/Tokyo"]))
def test_where_nothing_is_dropped_nothing_leaves_that_stayed(
    before: list[dict[str, Any]], after: list[dict[str, Any]], zone: str
) -> None:
    old, new = policy(before), policy(after, zone)
    if not dropped_denies(old, new):
        assert all(now for was, now in zip(kept(old), kept(new), strict=True) if was)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(rules, max_size=4), st.randoms(use_true_random=False))
def test_moving_rules_about_drops_nothing(written: list[dict[str, Any]], random: Any) -> None:
    moved = [*written]
    random.shuffle(moved)
    assert not dropped_denies(policy(written), policy([{"match": {"model": "q"}, "egress": "deny"}, *moved]))


DENY = {"match": {"tags": {"privacy": ["device", "site"]}}, "egress": "deny"}


@pytest.mark.parametrize(
    ("after", "is_dropped"),
    [
        ([], True),
        ([{"match": {"tags": {"privacy": "device"}}, "egress": "deny"}], True),
        ([{"match": {"tags": {"privacy": v}}, "egress": "deny"} for v in ("device", "site")], False),
        ([{"match": {}, "egress": "deny"}], False),
        ([{"match": {"unless_tags": {"privacy": "public"}}, "egress": "deny"}], False),
        ([{"match": {"unless_tags": {"privacy": ["public", "site"]}}, "egress": "deny"}], True),
        ([{**DENY, "match": {**DENY["match"], "model": "digits"}}], True),  # type: ignore[dict-item]
        ([{"match": DENY["match"], "route": "edge"}], True),
    ],
)
def test_a_rule_is_kept_where_others_deny_as_much(after: list[dict[str, Any]], is_dropped: bool) -> None:
    assert bool(dropped_denies(policy([DENY]), policy(after))) is is_dropped


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_hours_are_the_same_only_in_the_same_zone(zone: str) -> None:
    night = {"match": {"hours": "22:00-06:00"}, "egress": "deny"}
    assert bool(dropped_denies(policy([night]), policy([night], zone))) is (zone != "UTC")
    always = {"match": {}, "egress": "deny"}
    assert not dropped_denies(policy([night]), policy([always], zone))

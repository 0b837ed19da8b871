"""Explanations: the rules, settings and predictions that are told, and that the decision is the router's own."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.unit.routing.asking import policy
from upwell.shared.config.yaml import parse_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.routing.decide.explanation import NOW_S, Explanation, Inquiry, explain
from upwell.shared.routing.decide.router import Router
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.policy_warnings import warnings
from upwell.shared.routing.reasons import Plan, Reason

POLICY = """
timezone: Europe/Berlin
defaults: {deadline: 100ms, hard: {below: 0.35}, large: {above: 256KiB}}
rules:
  - {name: private, match: {tags: {privacy: device}}, egress: deny}
  - {name: night, match: {hours: "22:00-06:00"}, set: {hard: {below: 0.2}}}
  - {name: audit, match: {model: [digits], tags: {audit: "yes"}}, route: cloud}
models: {digits: {deadline: 50ms}}
"""


def test_a_speed_may_have_a_unit() -> None:
    link = {"rtt_s": 0.01}
    with_unit, plain = (told(link={**link, "uplink_bps": speed}, cloud_s=0.006) for speed in ("20Mbps", 2e7))
    assert with_unit == plain


FAST: dict[str, Any] = {"edge_s": 0.004, "cloud_s": 0.006, "link": {"rtt_s": 0.01, "uplink_bps": 2e7}}
NOON_S = 1_777_629_600.0  # 2026-05-01 10:00 UTC, which is noon in Berlin


def told(about: str | Policy = POLICY, **inquiry: Any) -> Explanation:
    of = policy(about) if isinstance(about, str) else about
    return explain(of, Inquiry.model_validate({"model": "digits", **inquiry}), NOON_S)


CASES: list[tuple[dict[str, Any], Plan, Reason]] = [
    ({}, Plan.CASCADE, Reason.EASY),
    ({"hardness": 0.9}, Plan.CASCADE, Reason.EASY),
    ({"hardness": 0.1}, Plan.CASCADE, Reason.HARD),
    ({"hardness": {"margin": 0.1, "entropy": 0.1}}, Plan.CASCADE, Reason.HARD),
    ({"hardness": {"entropy": 0.9}}, Plan.CASCADE, Reason.EASY),
    ({"size_bytes": 300_000, "cloud_s": 0.001}, Plan.CLOUD, Reason.LARGE),
    ({"size_bytes": 300_000, **FAST}, Plan.EDGE, Reason.CLOUD_TOO_SLOW),
    ({"hardness": 0.1, "tags": {"privacy": "device"}}, Plan.EDGE, Reason.EGRESS_DENIED),
    ({"hardness": 0.1, "has_cloud": False}, Plan.EDGE, Reason.NO_CLOUD),
    ({"hardness": 0.1, "breaker_open": True}, Plan.CASCADE, Reason.BREAKER_OPEN),
    ({"hardness": 0.1, "cloud_s": 0.5}, Plan.CASCADE, Reason.CLOUD_TOO_SLOW),
    ({"tags": {"audit": "yes"}, **FAST}, Plan.CLOUD, Reason.RULE),
    ({"has_edge": False}, Plan.CLOUD, Reason.NO_EDGE),
    ({"edge_s": 0.2, "cloud_s": 0.001}, Plan.CLOUD, Reason.EDGE_BUSY),
    ({"deadline_s": 0.003, **FAST}, Plan.EDGE, Reason.EDGE_BUSY),
]


@pytest.mark.parametrize(("inquiry", "plan", "reason"), CASES)
def test_the_decision_is_the_one_that_the_described_moment_asks_for(
    inquiry: dict[str, Any], plan: Plan, reason: Reason
) -> None:
    last = told(**inquiry).last
    assert (last.plan, last.reason) == (plan, reason)


@pytest.mark.parametrize("inquiry", [case[0] for case in CASES])
def test_it_is_the_routers_own_decision(inquiry: dict[str, Any]) -> None:
    of, asked = policy(POLICY), Inquiry.model_validate({"model": "digits", **inquiry})
    router = Router(of)
    expected = router.decide(asked.state(router), asked.signals(NOON_S), NOW_S)
    first = told(of, **inquiry).steps[0].decision
    for name in ("plan", "reason", "up_rows", "obstacle", "escalate", "refusal", "deadline_s", "give_up_s"):
        assert getattr(first, name) == getattr(expected, name)


def test_rules_are_told_with_the_key_that_did_not_hold() -> None:
    found = told(tags={"audit": "yes"}).rules
    assert [(rule.name, rule.missed) for rule in found] == [
        ("private", "tags.privacy"),
        ("night", "hours"),
        ("audit", ""),
    ]
    assert [rule.missed for rule in told(model="other", tags={"audit": "yes", "privacy": "device"}).rules] == [
        "",
        "hours",
        "model",
    ]


def test_large_rows_that_were_kept_are_not_asked_again_beside_the_hard_ones() -> None:
    found = told(row_sizes_bytes=[300_000, 100], hardness=0.1, **FAST)
    first, second = (step.decision for step in found.steps)
    assert (first.kept_rows, first.obstacle) == ((0,), Reason.CLOUD_TOO_SLOW)
    assert (second.up_rows, second.reason) == ((1,), Reason.HARD)


@pytest.mark.parametrize(
    ("inquiry", "reason", "degraded"),
    [
        ({"row_sizes_bytes": [300_000, 100], "hardness": 0.9, **FAST}, Reason.CLOUD_TOO_SLOW, True),
        ({"row_sizes_bytes": [300_000, 100], "hardness": 0.1, **FAST}, Reason.CLOUD_TOO_SLOW, True),
        ({"row_sizes_bytes": [300_000, 100], "hardness": 0.9, "cloud_s": 0.001}, Reason.LARGE, False),
        ({"hardness": 0.1, "cloud_s": 0.5}, Reason.CLOUD_TOO_SLOW, True),
        ({"hardness": 0.1, **FAST}, Reason.HARD, False),
        ({"hardness": 0.9, **FAST}, Reason.EASY, False),
    ],
)
def test_the_answer_s_reason_is_that_of_both_decisions_together(
    inquiry: dict[str, Any], reason: Reason, degraded: bool
) -> None:
    found = told(**inquiry)
    assert (found.reason, found.degraded) == (reason, degraded)


def test_settings_are_told_with_their_origin() -> None:
    settings = {one.key: (one.value, one.origin) for one in told().settings}
    assert settings["deadline"] == (0.05, "models.digits")
    assert settings["hard.threshold"] == (0.35, "defaults")
    assert settings["large.above"] == (262_144, "defaults")
    assert settings["objective"] == ("accuracy", "built-in")


def test_predictions_are_those_of_the_described_link() -> None:
    predicted_s = told(size_bytes=25_000, **FAST).predicted_s
    assert predicted_s["edge"] == pytest.approx(0.004)
    assert predicted_s["cloud"] == pytest.approx(0.006 + 0.01 + 25_000 * 8 / 2e7, rel=0.05)
    assert all(math.isnan(value) for value in told().predicted_s.values())


def test_rows_are_told_one_by_one() -> None:
    found = told(row_sizes_bytes=[1000, 300_000], hardness=0.9, cloud_s=0.001)
    assert found.steps[0].decision.up_rows == (1,)
    assert found.steps[1].decision.reason is Reason.EASY


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"model": "m", "size": 5}', "size"),
        ("{}", "model"),
        ('{"model": ""}', "model"),
        ('{"model": "m", "size_bytes": -1}', "size_bytes"),
        ('{"model": "m", "edge_s": .nan}', "edge_s"),
        ('{"model": "m", "time": "noon"}', "time"),
        ('{"model": "m", "hardness": {"gini": 1}}', "hardness"),
        ('{"model": "m", "link": {"uplink_bps": 0}}', "link.uplink_bps"),
        ('{"model": "m", "row_sizes_bytes": []}', "row_sizes_bytes"),
        ('{"model": "m", "size_bytes": 1, "row_sizes_bytes": [1]}', ""),
    ],
)
def test_a_request_that_is_wrong_is_refused_at_the_key(text: str, key: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_yaml(text, Inquiry)
    assert [problem.key for problem in error.value.problems] == [key]


DOUBTS = [
    (
        "rules: [{name: a, match: {}, route: edge}, {name: b, match: {}, route: cloud}]",
        ("rules", 1),
        "the earlier rule 'a' decides every request, so this one never decides anything",
    ),
    ("rules: [{name: a, match: {}, egress: deny, route: cloud}]", ("rules", 0, "route"), "has no effect with"),
    ("defaults: {hard: {below: 0}}", ("defaults", "hard", "below"), "no case is hard"),
    ("models: {m: {hard: {measure: entropy, above: 0}}}", ("models", "m", "hard", "above"), "nearly every case"),
    ("defaults: {hard: {cloud_share: 100%}}", ("defaults", "hard", "cloud_share"), "every case is offloaded"),
    ("defaults: {hard: {cloud_share: 10%}}", ("defaults", "hard"), "no calibration fits: threshold 0.75 holds"),
    ("defaults: {objective: energy}", ("defaults", "objective"), "compares by `energy`"),
    ("defaults: {objective: cost}", ("defaults", "objective"), "no candidate is offloaded"),
    ("defaults: {budget: {money: 5/day}}", ("defaults", "budget", "money"), "never reached"),
    ("defaults: {explore: 1%}", ("defaults", "explore"), "`record` is off"),
]


SHARE, LATE = "hard: {cloud_share: 20%}", "objective: latency"
NEVER_HELD = [
    (f"defaults: {{{LATE}, {SHARE}}}", ("defaults", "objective")),
    (
        "defaults: {objective: energy, energy: {inference: 1mJ, uplink_byte: 1uJ}, hard: {max_risk: 2%}}",
        ("defaults", "objective"),
    ),
    (f"defaults: {{{SHARE}}}\nmodels: {{m: {{{LATE}}}}}", ("models", "m", "objective")),
    (f"defaults: {{{LATE}}}\nmodels: {{m: {{{SHARE}}}}}", ("models", "m", "hard", "cloud_share")),
    (f"defaults: {{{SHARE}}}\nrules: [{{name: a, match: {{}}, set: {{{LATE}}}}}]", ("rules", 0, "set", "objective")),
]


@pytest.mark.parametrize(("text", "location"), NEVER_HELD)
def test_a_target_under_an_objective_that_sends_no_hard_case_is_doubted(
    text: str, location: tuple[str | int, ...]
) -> None:
    found = {at: words for at, words in warnings(policy(text)).items() if "never goes up" in words}
    assert list(found) == [location]


@pytest.mark.parametrize(
    "text", [f"defaults: {{{SHARE}}}", f"defaults: {{{LATE}}}", f"defaults: {{{LATE}, hard: off}}"]
)
def test_neither_a_share_nor_an_objective_alone_is_doubted(text: str) -> None:
    assert not [words for words in warnings(policy(text)).values() if "never goes up" in words]


@pytest.mark.parametrize(("text", "location", "words"), DOUBTS)
def test_what_is_hardly_meant_is_doubted_where_it_stands(
    text: str, location: tuple[str | int, ...], words: str
) -> None:
    found = warnings(policy(text))
    assert list(found) == [location]
    assert words in found[location]


def test_a_good_policy_raises_no_doubt() -> None:
    denies_by_default = POLICY.replace("tags: {privacy: device}", "unless_tags: {privacy: public}")
    assert warnings(policy(denies_by_default)) == {}


def test_a_rule_for_some_models_need_not_suit_the_measures_of_others() -> None:
    of = policy(
        "defaults: {hard: {measure: entropy, above: 0.3}}\n"
        "models: {pages: {hard: {measure: margin, below: 0.3}}}\n"
        "rules: [{name: r, match: {model: pages}, set: {hard: {below: 0.2}}}]"
    )
    hard = of.settings("pages", of.rules[0]).hard
    assert hard is not None
    assert hard.threshold == 0.2
    assert of.resolved("pages", of.rules[0]).origins["hard.threshold"] == "rules[0] r"
    assert of.resolved("other", None).origins["hard.threshold"] == "defaults"


@pytest.mark.parametrize("backwards", [False, True])
def test_what_is_denied_says_so_whatever_other_rules_say(backwards: bool) -> None:
    rules = ["{name: d, match: {}, egress: deny}", "{name: e, match: {}, route: edge}"]
    of = f"rules: [{', '.join(reversed(rules) if backwards else rules)}]"
    assert told(of, hardness=0.1).last.reason is Reason.EGRESS_DENIED
    assert (
        told(of.replace("deny", "deny, if: 'int(request.tags.n) > 3'"), hardness=0.1).last.reason is Reason.RULE_ERROR
    )

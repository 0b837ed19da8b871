"""Precedence key by key, and every error of a policy at its place in the file."""

from __future__ import annotations

import itertools
import math
import sys
import zoneinfo
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.routing.asking import policy
from upwell.shared.errors import ConfigError
from upwell.shared.routing.policy import Policy, hours_minutes
from upwell.shared.routing.reasons import CLOUD_FAILURES, Reason
from upwell.shared.routing.settings import Action, HardSettings, Settings
from upwell.shared.yaml import load_yaml, parse_yaml

DEFAULTS = Settings()


def all_of(action: Action) -> dict[Reason, Action]:
    """A failure table with one action throughout."""
    return dict.fromkeys(CLOUD_FAILURES, action)


def hard_of(of: Policy, model: str) -> HardSettings:
    """What is hard for `model` under the first rule."""
    hard = of.settings(model, of.rules[0]).hard
    assert hard is not None
    return hard


def test_an_empty_policy_has_the_documented_defaults() -> None:
    assert policy().settings(None, None) == DEFAULTS
    assert Policy().settings("any model", None) == DEFAULTS
    assert policy("defaults: {}").settings(None, None) == DEFAULTS


KEYS: dict[str, tuple[str, str, Any, Any]] = {
    "deadline_s": ("deadline: 80ms", "deadline: 2s", 0.08, 2.0),
    "objective": ("objective: latency", "objective: accuracy", "latency", "accuracy"),
    "hard": ("hard: {below: 0.1}", "hard: {below: 0.9}", HardSettings(threshold=0.1), HardSettings(threshold=0.9)),
    "large_above_bytes": ("large: {above: 1KiB}", "large: off", 1024, math.inf),
    "on_cloud_failure": ("on_cloud_failure: error", "on_cloud_failure: edge", all_of("error"), all_of("edge")),
}


@pytest.mark.parametrize("key", KEYS)
def test_a_key_written_at_several_levels_takes_the_last_and_changes_nothing_else(key: str) -> None:
    first, second, low, high = KEYS[key]
    for levels in itertools.product((None, first, second), repeat=3):
        defaults, model, rule = (f"{{{text}}}" if text else "{}" for text in levels)
        of = policy(
            f"defaults: {defaults}\nmodels: {{digits: {model}}}\nrules: [{{name: r, match: {{}}, set: {rule}}}]"
        )
        written = [text for text in levels if text is not None]
        expected = getattr(DEFAULTS, key) if not written else low if written[-1] == first else high
        assert of.settings("digits", of.rules[0]) == replace(DEFAULTS, **{key: expected}), levels


def test_each_level_holds_only_for_its_own() -> None:
    of = policy(
        "defaults: {deadline: 1s}\nmodels: {a: {deadline: 2s}, b: {objective: latency}}\n"
        "rules: [{name: r, match: {}, set: {deadline: 3s}}, {name: s, match: {}, route: edge}]"
    )
    r, s = of.rules
    found = {(model, rule.name): of.settings(model, rule).deadline_s for model in "abc" for rule in (r, s)}
    assert found == {(m, "r"): 3.0 for m in "abc"} | {("a", "s"): 2.0, ("b", "s"): 1.0, ("c", "s"): 1.0}
    assert of.settings("b", r).objective == "latency"
    assert of.settings("a", r).objective == "accuracy"


HARD = [
    ("{measure: entropy, above: 0.6}", "{}", "{above: 0.7}", ("entropy", 0.7)),
    ("{measure: entropy, above: 0.6}", "{above: 0.5}", "{}", ("entropy", 0.5)),
    ("{below: 0.5}", "{measure: max_prob}", "{}", ("max_prob", 0.5)),
    ("{below: 0.5}", "{measure: entropy, above: 0.4}", "{}", ("entropy", 0.4)),
    ("{measure: entropy, above: 0.4}", "{measure: margin, below: 0.2}", "{}", ("margin", 0.2)),
    ("{below: 0.5}", "{measure: entropy, above: 0.4}", "{measure: margin}", ("margin", 0.5)),
    ("off", "{below: 0.2}", "{}", ("margin", 0.2)),
    ("{below: 0.2}", "off", "{below: 0.3}", ("margin", 0.3)),
    ("{below: 0}", "{}", "{}", ("margin", 0.0)),
    ("{measure: max_prob, below: 1}", "{}", "{}", ("max_prob", 1.0)),
    ("{}", "{}", "{}", ("margin", 0.35)),
    ("{measure: margin}", "{}", "{}", ("margin", 0.35)),
]


@pytest.mark.parametrize(("defaults", "model", "rule", "expected"), HARD)
def test_hard_is_merged_key_by_key_too(defaults: str, model: str, rule: str, expected: tuple[str, float]) -> None:
    of = policy(
        f"defaults: {{hard: {defaults}}}\nmodels: {{m: {{hard: {model}}}}}\n"
        f"rules: [{{name: r, match: {{}}, set: {{hard: {rule}}}}}]"
    )
    found = hard_of(of, "m")
    assert (found.measure, found.threshold) == expected


def test_off_at_any_level_means_no_case_is_hard() -> None:
    of = policy("models: {m: {hard: off}}\nrules: [{name: r, match: {}, set: {hard: off}}]")
    assert of.settings("m", None).hard is None
    assert of.settings("x", of.rules[0]).hard is None
    assert of.settings("x", None).hard == HardSettings()


ERRORS = [
    ("defaults: {dead_line: 1s}", "1:12: defaults.dead_line: unknown key; did you mean 'deadline'?"),
    ("defaults: {deadline: 100}", "1:22: defaults.deadline: expected a duration such as 80ms"),
    ("defaults: {deadline: 1KiB}", "1:22: defaults.deadline: unknown unit 'KiB'"),
    ("defaults: {deadline: 1 s}", "1:22: defaults.deadline: expected a duration such as 80ms"),
    ("defaults: {deadline: 0}", "1:22: defaults.deadline: expected more than 0.0, got 0"),
    ("defaults: {deadline: -1s}", "1:22: defaults.deadline: expected a duration such as 80ms"),
    ("defaults: {deadline: .nan}", "1:22: defaults.deadline: expected a duration such as 80ms"),
    ("defaults: {deadline: .inf}", "1:22: defaults.deadline: expected a duration such as 80ms"),
    ("defaults: {objective: speed}", "1:23: defaults.objective: expected 'accuracy' or 'latency', got 'speed'"),
    ("defaults: {hard: {below: 1.5}}", "1:26: defaults.hard.below: expected 1.0 or less, got 1.5"),
    ("defaults: {hard: {below: -0.1}}", "1:26: defaults.hard.below: expected 0.0 or more, got -0.1"),
    ("defaults: {hard: {below: .nan}}", "1:26: defaults.hard.below: "),
    ("defaults: {hard: {measure: gini}}", "1:28: defaults.hard.measure: expected 'max_prob', 'margin' or 'entropy'"),
    ("defaults: {hard: on}", "1:18: defaults.hard: expected keys and values or 'off', got 'on'"),
    ("defaults: {large: 256KiB}", "1:19: defaults.large: expected keys and values or 'off', got '256KiB'"),
    ("defaults: {large: {above: 5ms}}", "1:27: defaults.large.above: unknown unit 'ms'"),
    ("defaults: {large: {above: 1.5B}}", "1:27: defaults.large.above: expected a whole number of bytes"),
    ("defaults: {large: {}}", "1:19: defaults.large.above: this key is missing"),
    ("defaults: {on_cloud_failure: cloud}", "1:30: defaults.on_cloud_failure: expected 'edge' or 'error'"),
    ("timezone: Mars/Olympus", "1:11: timezone: unknown time zone 'Mars/Olympus'; expected an IANA name such as"),
    ("timezone: ../../etc/passwd", "1:11: timezone: unknown time zone"),
    ("timezone: Europe", "1:11: timezone: unknown time zone 'Europe'"),
    ("version: 2", "1:10: version: expected 1, got 2"),
    ("models: {m: {hardness: 1}}", "1:14: models.m.hardness: unknown key; did you mean 'hard'?"),
    ("rules: [{match: {}, route: edge}]", "1:9: rules[0].name: this key is missing"),
    ("rules: [{name: r, route: edge}]", "1:9: rules[0].match: this key is missing"),
    ("rules: [{name: '', match: {}, route: edge}]", "1:16: rules[0].name: "),
    ("rules: [{name: r, match: {}}]", "1:9: rules[0]: the rule does nothing; expected egress, route or set"),
    ("rules: [{name: r, match: {}, egress: allow}]", "1:38: rules[0].egress: expected 'deny', got 'allow'"),
    ("rules: [{name: r, match: {}, route: up}]", "1:37: rules[0].route: expected 'edge' or 'cloud', got 'up'"),
    (
        "rules: [{name: r, match: {tag: {}}, route: edge}]",
        "1:27: rules[0].match.tag: unknown key; did you mean 'tags'?",
    ),
    ("rules: [{name: r, match: {tags: {a: 1}}, route: edge}]", "1:37: rules[0].match.tags.a: expected text or a list"),
    ("rules: [{name: r, match: {tags: {a: }}, route: edge}]", "1:36: rules[0].match.tags.a: expected text or a list"),
    ("rules: [{name: r, match: {size: {above: 1}}, route: edge}]", "1:41: rules[0].match.size.above: expected a size"),
]
HOURS = ["24:00-06:00", "22-06", "22:00", "22:60-06:00", "22:00 - 06:00", "9:00-17:00", "22:00-06:00-07:00", "", "a-b"]


@pytest.mark.parametrize(("text", "expected"), ERRORS)
def test_an_error_says_where_and_what_would_be_right(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_yaml(text, Policy, Path("policy.yaml"))
    assert str(error.value).startswith(f"policy.yaml:{expected}")
    assert len(error.value.problems) == 1


@pytest.mark.parametrize("hours", HOURS)
def test_hours_that_are_no_span_are_refused_at_their_place(hours: str) -> None:
    with pytest.raises(ConfigError, match=r'^1:34: rules\[0\].match.hours: expected a span such as "22:00-06:00"'):
        policy(f"rules: [{{name: r, match: {{hours: '{hours}'}}, route: edge}}]")


def test_all_errors_of_a_file_are_told_at_once_in_its_order() -> None:
    with pytest.raises(ConfigError) as error:
        parse_yaml(
            "timezone: Nowhere\n"
            "defaults:\n"
            "  deadline: 100\n"
            "  budget: {}\n"
            "rules:\n"
            "  - {name: a, match: {hours: 25}, route: edge}\n"
            "  - {name: b, match: {}}\n"
            "models:\n"
            "  digits: {hard: {below: 2}}\n",
            Policy,
        )
    keys = [(problem.line, problem.column, problem.key) for problem in error.value.problems]
    assert keys == [
        (1, 11, "timezone"),
        (3, 13, "defaults.deadline"),
        (4, 3, "defaults.budget"),
        (6, 30, "rules[0].match.hours"),
        (7, 5, "rules[1]"),
        (9, 26, "models.digits.hard.below"),
    ]


def problems(text: str) -> list[tuple[int | None, str]]:
    """Line and key of each problem of a policy."""
    with pytest.raises(ConfigError) as error:
        policy(text)
    return [(problem.line, problem.key) for problem in error.value.problems]


@pytest.mark.parametrize(
    "hard", ["{measure: entropy}", "{measure: entropy, below: 0.2}", "{measure: margin, above: 0.2}", "{above: 0.2}"]
)
def test_a_measure_without_its_own_threshold_is_refused_where_it_is_written(hard: str) -> None:
    assert problems(f"version: 1\ndefaults: {{hard: {hard}}}") == [(2, "defaults.hard")]
    assert problems(f"version: 1\nmodels:\n  m: {{hard: {hard}}}") == [(3, "models.m.hard")]
    rules = f"version: 1\nrules:\n  - name: r\n    match: {{}}\n    set: {{hard: {hard}}}"
    assert problems(rules) == [(5, "rules[0].set.hard")]


def test_a_threshold_for_the_measure_of_other_models_changes_nothing_here() -> None:
    of = policy(
        "models: {m: {hard: {measure: entropy, above: 0.5}}}\nrules: [{name: r, match: {}, set: {hard: {below: 0.2}}}]"
    )
    assert hard_of(of, "m").threshold == 0.5
    assert hard_of(of, "other").threshold == 0.2


def test_a_rule_that_contradicts_only_together_with_one_model_is_refused() -> None:
    text = (
        "models: {m: {hard: {above: 0.5, measure: entropy}}, n: {hard: off}}\n"
        "rules:\n  - {name: r, match: {}, set: {hard: {measure: margin}}}"
    )
    assert problems(text) == [(3, "rules[0].set.hard")]


@pytest.mark.parametrize("measure", ["", "measure: margin, ", "measure: entropy, "])
def test_thresholds_for_both_directions_in_one_section_are_refused(measure: str) -> None:
    assert problems(f"defaults: {{hard: {{{measure}below: 0.2, above: 0.3}}}}") == [(1, "defaults.hard")]


def test_a_threshold_of_nothing_is_refused() -> None:
    assert problems("defaults: {hard: {below: }}") != []


def test_two_rules_of_one_name_are_refused_where_the_second_stands() -> None:
    text = "rules:\n  - {name: a, match: {}, route: edge}\n  - {name: b, match: {}, route: edge}\n"
    again = text + "  - {name: a, match: {}, route: cloud}\n  - {name: b, match: {}, route: cloud}\n"
    assert problems(again) == [(4, "rules[2].name"), (5, "rules[3].name")]


@pytest.mark.parametrize("match", ["{tags: {privacy: []}}", "{model: []}"])
def test_a_rule_that_can_never_match_is_refused(match: str) -> None:
    assert problems(f"rules: [{{name: r, match: {match}, egress: deny}}]") != []


def test_utc_needs_no_time_zone_database(monkeypatch: pytest.MonkeyPatch) -> None:
    package = [name for name in sys.modules if name.partition(".")[0] == "tzdata"]
    for name in ("tzdata", *package):  # stands in for the system's database
        monkeypatch.setitem(sys.modules, name, None)
    zoneinfo.reset_tzpath(to=())
    zoneinfo.ZoneInfo.clear_cache()
    try:
        assert problems("timezone: Europe/Berlin") == [(1, "timezone")]
        assert policy("timezone: UTC").timezone == "UTC"
    finally:
        zoneinfo.reset_tzpath()


@pytest.mark.parametrize(
    ("span", "minutes"), [("00:00-23:59", (0, 1439)), ("22:00-06:00", (1320, 360)), ("07:05-07:05", (425, 425))]
)
def test_hours_are_minutes_after_midnight(span: str, minutes: tuple[int, int]) -> None:
    assert hours_minutes(span) == minutes


def test_a_policy_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("version: 1\ndefaults: {deadline: 50ms}\n")
    assert load_yaml(path, Policy).settings(None, None).deadline_s == 0.05

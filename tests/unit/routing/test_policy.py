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
from upwell.shared.config.yaml import load_yaml, parse_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.routing.policy.policy import Policy, hours_minutes
from upwell.shared.routing.policy.settings import (
    Action,
    Energy,
    HardSettings,
    HedgeSettings,
    Limit,
    ModelPair,
    Prices,
    Settings,
    SourceLimits,
)
from upwell.shared.routing.reasons import CLOUD_FAILURES, Reason

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


@pytest.mark.parametrize(
    ("written", "threshold"),
    [
        ("measure: margin, below: 20%", 0.2),
        ("measure: margin, below: '35.5%'", 0.355),
        ("measure: entropy, above: 40%", 0.4),
        ("measure: margin, below: 100%", 1.0),
    ],
)
def test_a_threshold_may_be_written_as_a_percentage(written: str, threshold: float) -> None:
    hard = policy(f"defaults: {{hard: {{{written}}}}}").settings(None, None).hard
    assert hard is not None
    assert hard.threshold == pytest.approx(threshold)


@pytest.mark.parametrize("written", ["120%", "-5%", "'%'", "a%", "'20'"])
def test_what_is_neither_a_number_nor_a_percentage_is_no_threshold(written: str) -> None:
    with pytest.raises(ConfigError) as caught:
        policy(f"defaults: {{hard: {{below: {written}}}}}")
    assert caught.value.problems[0].key == "defaults.hard.below"


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
    ("{}", "{}", "{}", ("margin", 0.75)),
    ("{measure: margin}", "{}", "{}", ("margin", 0.75)),
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
    (
        "defaults: {objective: speed}",
        "1:23: defaults.objective: expected 'accuracy', 'latency', 'energy' or 'cost', got 'speed'",
    ),
    (
        "defaults: {hard: {below: 1.5}}",
        "1:26: defaults.hard.below: measure margin is from 0 to 1; expected a threshold in this range, got 1.5",
    ),
    (
        "defaults: {hard: {below: -0.1}}",
        "1:26: defaults.hard.below: measure margin is from 0 to 1; expected a threshold in this range, got -0.1",
    ),
    ("defaults: {hard: {below: .nan}}", "1:26: defaults.hard.below: "),
    (
        "defaults: {hard: {measure: gini}}",
        "1:28: defaults.hard.measure: expected 'max_prob', 'margin', 'entropy', 'energy'",
    ),
    ("defaults: {hard: on}", "1:18: defaults.hard: expected keys and values or 'off', got 'on'"),
    ("defaults: {large: 256KiB}", "1:19: defaults.large: expected keys and values or 'off', got '256KiB'"),
    ("defaults: {large: {above: 5ms}}", "1:27: defaults.large.above: unknown unit 'ms'"),
    ("defaults: {large: {above: 1.5B}}", "1:27: defaults.large.above: expected a whole number of bytes"),
    ("defaults: {large: {}}", "1:19: defaults.large.above: this key is missing"),
    (
        "defaults: {on_cloud_failure: cloud}",
        "1:30: defaults.on_cloud_failure: expected 'edge', 'error', 'spool' or 'retry' or keys and values, got 'cloud'",
    ),
    ("timezone: Mars/Olympus", "1:11: timezone: unknown time zone 'Mars/Olympus'; expected an IANA name such as"),
    ("timezone: ../../etc/passwd", "1:11: timezone: unknown time zone"),
    ("timezone: Europe", "1:11: timezone: unknown time zone 'Europe'"),
    ("version: 2", "1:10: version: expected 1, got 2"),
    ("models: {m: {hardness: 1}}", "1:14: models.m.hardness: unknown key; did you mean 'hard'?"),
    ("rules: [{match: {}, route: edge}]", "1:9: rules[0].name: this key is missing"),
    ("rules: [{name: r, route: edge}]", "1:9: rules[0]: the rule applies to nothing; expected `match` or `if`"),
    ("rules: [{name: '', match: {}, route: edge}]", "1:16: rules[0].name: "),
    (
        "rules: [{name: r, match: {}}]",
        "1:9: rules[0]: the rule does nothing; expected `egress`, `route`, `set` or `collect`",
    ),
    ("rules: [{name: r, match: {}, egress: allow}]", "1:38: rules[0].egress: expected 'deny', got 'allow'"),
    ("rules: [{name: r, match: {}, route: up}]", "1:37: rules[0].route: expected 'edge', 'cloud' or 'split', got 'up'"),
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
            "  budgets: {}\n"
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
        (4, 3, "defaults.budgets"),
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


WHOLE = """
version: 1
defaults:
  confidence: 95%
  on_cloud_failure: {default: retry, unavailable: spool, certificate: error}
  spool: true
  hedge: {after: p99, at_most: 4%}
  budget: {cloud_requests: 100/min, uplink: 5GB/month, money: 20.5/month, billing_day: 31}
  prices: {uplink_gb: 4.0, cloud_request: 0.0004}
  energy: {inference: 20mJ, uplink_byte: 2uJ}
  priority: high
  source: {tag: camera, keep: latest, rate: 30/min}
  audit: 0.1%
  explore: 1%
  record: {keep: 1MiB}
models:
  digits: {on_cloud_failure: {default: edge}, hedge: {after: 80ms}, budget: {money: 5/day}, source: {keep: all}}
rules:
  - {name: plain, match: {}, set: {on_cloud_failure: error, hedge: off, budget: off, source: off, record: off}}
"""


def test_every_section_becomes_settings_and_is_merged_key_by_key() -> None:
    of = policy(WHOLE)
    settings = of.settings(None, None)
    assert settings.confidence == 0.95
    table = all_of("retry") | {Reason.CLOUD_UNAVAILABLE: "spool", Reason.CLOUD_CERTIFICATE: "error"}
    assert settings.on_cloud_failure == table
    assert settings.hedge == HedgeSettings(0.04, 0.99)
    assert (settings.prices, settings.energy) == (Prices(4.0, 0.0004), Energy(0.02, 2e-6))
    assert settings.source == SourceLimits("camera", True, 0.5)
    assert (settings.spool, settings.priority, settings.audit, settings.explore) == (True, "high", 0.001, 0.01)
    assert settings.record_bytes == 1 << 20
    model = of.settings("digits", None)
    assert model.on_cloud_failure == table | {reason: "edge" for reason, action in table.items() if action == "retry"}
    assert model.hedge is not None
    assert (model.hedge.at_most, model.hedge.after_s) == (0.04, 0.08)
    assert model.source == SourceLimits("camera", False, 0.5)
    rule = of.settings("digits", of.rules[0])
    assert rule.on_cloud_failure == all_of("error")
    assert (rule.hedge, rule.budget, rule.source, rule.record_bytes) == (None, (), None, 0)


def test_a_limit_is_kept_under_the_level_that_wrote_it() -> None:
    of = policy(WHOLE)
    shared = [
        Limit("defaults.budget.cloud_requests", "cloud_requests", 100, "min", 31),
        Limit("defaults.budget.uplink", "uplink", 5e9, "month", 31),
    ]
    assert of.settings("other", None).budget == (*shared, Limit("defaults.budget.money", "money", 20.5, "month", 31))
    assert of.settings("digits", None).budget == (*shared, Limit("models.digits.budget.money", "money", 5, "day", 31))


def test_each_setting_names_the_level_that_wrote_it() -> None:
    of = policy(
        "defaults: {deadline: 1s, hard: {below: 0.2}}\nmodels: {m: {deadline: 2s}}\n"
        "rules: [{name: a, match: {}, route: edge}, {name: night, match: {}, set: {hard: {measure: max_prob}}}]"
    )
    origins = of.resolved("m", of.rules[1]).origins
    assert origins["deadline"] == "models.m"
    assert origins["hard.measure"] == "rules[1] night"
    assert origins["hard.threshold"] == "defaults"
    assert "large" not in origins


TARGETS = [
    ("{cloud_share: 20%}", "{}", (0.75, 0.2, math.nan)),
    ("{cloud_share: 20%, below: 0.1}", "{}", (0.1, 0.2, math.nan)),
    ("{cloud_share: 20%}", "{below: 0.1}", (0.1, math.nan, math.nan)),
    ("{below: 0.1}", "{cloud_share: 20%}", (0.1, 0.2, math.nan)),
    ("{max_risk: 2%}", "{cloud_share: 20%}", (0.75, 0.2, math.nan)),
    ("{cloud_share: 20%}", "{max_risk: 2%}", (0.75, math.nan, 0.02)),
    ("{cloud_share: 20%}", "{measure: entropy}", (0.5, 0.2, math.nan)),
]


@pytest.mark.parametrize(("defaults", "model", "expected"), TARGETS)
def test_the_last_level_that_says_how_the_threshold_is_found_counts(
    defaults: str, model: str, expected: tuple[float, float, float]
) -> None:
    hard = policy(f"defaults: {{hard: {defaults}}}\nmodels: {{m: {{hard: {model}}}}}").settings("m", None).hard
    assert hard is not None
    assert (hard.threshold, hard.cloud_share, hard.max_risk) == pytest.approx(expected, nan_ok=True)
    assert hard.calibrated is (math.isnan(hard.cloud_share) and math.isnan(hard.max_risk))
    assert bool(hard.scope) is not hard.calibrated


CALIBRATED = """
models: {m: {hard: {cloud_share: 20%}}, n: {hard: {max_risk: 2%, confidence: 99%}}}
calibrations:
  - {model: m, measure: margin, below: 0.1, cloud_share: 20%}
  - {model: m, measure: margin, below: 0.2, temperature: 1.5, cloud_share: 20%, edge_digest: a, evidence: {items: 9}}
  - {model: m, measure: margin, below: 0.3, cloud_share: 20%, edge_digest: a, cloud_digest: c}
  - {model: m, measure: margin, below: 0.4, cloud_share: 30%}
  - {model: n, measure: margin, below: 0.5, max_risk: 2%, confidence: 99%}
  - {model: n, measure: margin, below: 0.6, max_risk: 2%}
"""


@pytest.mark.parametrize(
    ("model", "model_pair", "threshold"),
    [
        ("m", ModelPair(), 0.3),
        ("m", ModelPair("a"), 0.3),
        ("m", ModelPair("a", cloud_digest="d"), 0.2),
        ("m", ModelPair("b", "onnx cpu", "c"), 0.1),
        ("n", ModelPair("b", "onnx cpu", "c"), 0.5),
    ],
)
def test_the_calibration_that_names_most_of_what_runs_is_taken(
    model: str, model_pair: ModelPair, threshold: float
) -> None:
    hard = policy(CALIBRATED).settings(model, None, model_pair).hard
    assert hard is not None
    assert (hard.threshold, hard.calibrated) == (threshold, True)
    assert hard.temperature == (1.5 if threshold == 0.2 else 1.0)


def test_a_calibration_for_other_models_leaves_the_plain_threshold() -> None:
    calibration = "{model: m, measure: margin, below: 0.1, max_risk: 2%, edge_digest: a}"
    of = policy(f"models: {{m: {{hard: {{max_risk: 2%}}}}}}\ncalibrations: [{calibration}]")
    for model_pair, calibrated in (
        (ModelPair("b"), False),
        (ModelPair("a"), True),
        (ModelPair(edge_runtime="x"), True),
    ):
        hard = of.settings("m", None, model_pair).hard
        assert hard is not None
        assert (hard.calibrated, hard.threshold) == (calibrated, 0.1 if calibrated else 0.75)


WRONG = [
    ("defaults: {hard: {cloud_share: 20%, max_risk: 2%}}", "defaults.hard: expected cloud_share or max_risk, not both"),
    ("defaults: {hard: {cloud_share: 20}}", "defaults.hard.cloud_share: expected a share from 0% to 100%"),
    ("defaults: {hard: {max_risk: 0%}}", "defaults.hard.max_risk: expected more than 0"),
    ("defaults: {hard: {measure: energy, cloud_share: 5%}}", "defaults.hard: measure energy needs `above`, which"),
    ("defaults: {hard: {measure: output, above: 3}}", "defaults.hard: measure output needs `output`"),
    (
        "{defaults: {hard: {measure: entropy, above: 0.3}}, rules: [{name: r, match: {}, set: {hard: {below: 0.2}}}]}",
        "rules[0].set.hard.below: measure entropy needs `above`; `below` does not apply",
    ),
    ("defaults: {hard: {below: true}}", "defaults.hard.below: expected a number, got true"),
    ("defaults: {hard: {temperature: 0}}", "defaults.hard.temperature: expected more than 0"),
    ("defaults: {confidence: 100%}", "defaults.confidence: expected less than 1"),
    ("defaults: {on_cloud_failure: {late: edge}}", "defaults.on_cloud_failure.late: unknown key"),
    ("defaults: {on_cloud_failure: {deadline: }}", "defaults.on_cloud_failure.deadline: expected a value, got nothing"),
    ("defaults: {hedge: {after: p100}}", "defaults.hedge.after: expected a duration such as"),
    ("defaults: {hedge: {after: p10}}", "defaults.hedge.after: expected a quantile from p50 to p99.999, got 'p10'"),
    ("defaults: {hedge: {after: 0}}", "defaults.hedge.after: expected more than 0"),
    ("defaults: {budget: {uplink: 5GB}}", "defaults.budget.uplink: expected an amount in each period, such as 5GB/mon"),
    ("defaults: {budget: {uplink: 5/month}}", "defaults.budget.uplink: expected a size such as 256KiB"),
    ("defaults: {budget: {cloud_requests: 1.5/s}}", "defaults.budget.cloud_requests: expected a whole number"),
    ("defaults: {budget: {money: 5/year}}", "defaults.budget.money: unknown period 'year'"),
    ("defaults: {budget: {money: -5/day}}", "defaults.budget.money: expected a number such as 20"),
    ("defaults: {budget: {billing_day: 32}}", "defaults.budget.billing_day: expected 31 or less, got 32"),
    (
        "defaults: {prices: {cloud_request: 1.0e+300}}",
        "defaults.prices.cloud_request: expected a price of at most 1e12",
    ),
    ("defaults: {prices: {uplink_gb: -1}}", "defaults.prices.uplink_gb: expected 0.0 or more"),
    ("defaults: {prices: {uplink_gb: .nan}}", "defaults.prices.uplink_gb: expected"),
    ("defaults: {energy: {inference: 5}}", "defaults.energy.inference: expected an energy such as 20mJ"),
    ("defaults: {source: {rate: 10/s}}", "defaults.source: `source` needs `tag`"),
    (
        "defaults: {source: {tag: a, rate: 10/day}}",
        "defaults.source.rate: expected a rate of more than 0 per s, min or",
    ),
    ("defaults: {record: {keep: 0}}", "defaults.record.keep: expected more than 0"),
    ("rules: [{name: r, match: {}, route: }]", "rules[0].route: expected a value, got nothing"),
    ("rules: [{name: r, if: 5, route: edge}]", "rules[0].if: expected an expression as text"),
    ("calibrations: [{model: m, measure: entropy, below: 1, cloud_share: 5%}]", "calibrations[0]: expected `above`"),
    ("calibrations: [{model: m, measure: margin, below: 1}]", "calibrations[0]: expected one of cloud_share and max_"),
    (
        "calibrations: [&c {model: m, measure: margin, below: 1, cloud_share: 5%}, *c]",
        "calibrations[1]: calibrations[0] is for the same models, measure and target",
    ),
]


@pytest.mark.parametrize(("text", "expected"), WRONG)
def test_what_is_wrong_in_a_section_is_told_where_it_stands(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as error:
        policy(text)
    (problem,) = error.value.problems
    assert f"{problem.key}: {problem.message}".startswith(expected)
    assert problem.line == 1


def test_what_only_the_whole_shows_is_told_beside_wrong_keys() -> None:
    found = problems(
        "defaults: {deadline: 5}\nmodels: {m: {hard: {measure: entropy}}, n: {objective: speed}}\n"
        "rules:\n- {name: a, match: {}, route: edge}\n- {name: b, match: {}}\n- {name: a, match: {}, route: edge}"
    )
    assert found == [
        (1, "defaults.deadline"),
        (2, "models.m.hard"),
        (2, "models.n.objective"),
        (5, "rules[1]"),
        (6, "rules[2].name"),
    ]


def test_nothing_is_guessed_about_levels_above_a_section_that_is_wrong() -> None:
    text = "defaults: {hard: {measure: entropy, above: x}}\nmodels: {m: {hard: {above: 0.2}}}"
    assert problems(text) == [(1, "defaults.hard.above")]


def test_more_rules_and_models_than_could_be_computed_are_refused() -> None:
    rules = ", ".join(f"{{name: r{n}, match: {{}}, set: {{deadline: 1s}}}}" for n in range(150))
    models = ", ".join(f"m{n}: {{deadline: 1s}}" for n in range(100))
    with pytest.raises(ConfigError, match="times models exceed"):
        policy(f"rules: [{rules}]\nmodels: {{{models}}}")

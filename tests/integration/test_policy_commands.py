"""`upwell policy check`, `explain` and `schema` on real files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from upwell.shared.config.json_schema import DIALECT
from upwell.shared.config.yaml import load_yaml
from upwell.shared.config.yaml_tree import read_tree
from upwell.shared.errors import ConfigError
from upwell.shared.routing.policy.policy import Policy
from upwell.tools.policy.check_cli import check, policy_schema, schema
from upwell.tools.policy.explain_cli import explain

APP = typer.Typer()
for command in (check, explain, schema):
    APP.command()(command)
DOCS = Path(__file__).parents[2] / "docs" / "policy.md"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(APP, [str(argument) for argument in arguments])


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(
        "version: 1\ndefaults: {deadline: 50ms, hard: {below: 0.3}}\n"
        "rules:\n  - {name: private, match: {tags: {privacy: device}}, egress: deny}\n"
    )
    return path


def test_a_good_policy_passes(policy: Path) -> None:
    policy.write_text(policy.read_text().replace("tags: {privacy: device}", "unless_tags: {privacy: public}"))
    done = run("check", policy)
    digest = load_yaml(policy, Policy).digest
    assert (done.exit_code, done.stdout) == (0, f"{policy}: a valid policy, {digest}\n")
    done = run("check", policy, "--json")
    assert json.loads(done.stdout) == {
        "file": str(policy), "ok": True, "digest": digest, "problems": [], "warnings": [],
    }  # fmt: skip


def test_every_problem_is_told_with_its_place_and_the_exit_code_says_so(policy: Path) -> None:
    policy.write_text("defaults: {deadline: 5, objektive: cost}\nrules: [{name: a, match: {}}]\n")
    done = run("check", policy)
    assert done.exit_code == 1
    assert [line.split(": ")[1].removeprefix(str(policy)) for line in done.stdout.splitlines()] == [
        ":1:22", ":1:25", ":2:9",
    ]  # fmt: skip
    found = json.loads(run("check", policy, "--json").stdout)
    assert not found["ok"]
    assert [problem["key"] for problem in found["problems"]] == ["defaults.deadline", "defaults.objektive", "rules[0]"]


def test_warnings_do_not_fail(policy: Path) -> None:
    policy.write_text("models:\n  m: {hard: {measure: max_prob, below: 1}}\n")
    done = run("check", policy)
    assert done.exit_code == 0
    assert f"warning: {policy}:2:40: models.m.hard.below: nearly every case is hard" in done.stdout


def test_a_file_that_is_not_there_is_wrong_use(tmp_path: Path) -> None:
    done = run("check", tmp_path / "none.yaml")
    assert isinstance(done.exception, ConfigError)


def test_nothing_that_a_terminal_obeys_is_printed(policy: Path) -> None:
    policy.write_text('rules: [{name: a, match: {}}]\n"\\e[31m": 1\n')
    assert "\x1b" not in run("check", policy).stdout
    policy.write_text('rules: [{name: "\\e[31m", match: {}, route: edge}]\n')
    request = policy.with_name("request.json")
    request.write_text('{"model": "m"}')
    assert "\x1b" not in run("explain", policy, "--request", request).stdout


def test_a_decision_is_told_step_by_step(policy: Path) -> None:
    request = policy.with_name("request.json")
    request.write_text(
        json.dumps({"model": "m", "size_bytes": 1000, "hardness": 0.1, "edge_s": 0.004, "cloud_s": 0.005})
    )
    done = run("explain", policy, "--request", request)
    assert done.exit_code == 0
    for words in (
        "private: no: tags.privacy",
        "deadline",
        "edge: 4.0 ms",
        "cloud: 5.0 ms",
        "Before the edge run",
        "After the edge run",
        "row 0 goes to the cloud",
        "row_sizes_bytes: [1000]",
        "rtt_s: 0.0",
        "plan cascade, reason hard",
    ):
        assert words in done.stdout
    found = json.loads(run("explain", policy, "--request", request, "--json").stdout)
    assert (found["plan"], found["reason"], found["up_rows"]) == ("cascade", "hard", [0])
    assert found["rules"] == [{"name": "private", "matched": False, "missed": "tags.privacy", "error": None}]
    assert {"key": "deadline", "value": 0.05, "from": "defaults"} in found["settings"]
    assert [step["when"] for step in found["steps"]] == ["before the edge run", "after the edge run"]


def test_settings_that_are_a_table_are_told(policy: Path) -> None:
    policy.write_text(
        "defaults: {prices: {interfaces: {wlan0: 0, wwan0: 4}}, collect: {classes: {helmet: 5%}}, deadline: 50ms}"
    )
    request = policy.with_name("request.json")
    request.write_text(json.dumps({"model": "m", "size_bytes": 1000}))
    done = run("explain", policy, "--request", request)
    assert done.exit_code == 0
    assert "wlan0: 0, wwan0: 4" in done.stdout
    assert "helmet: 0.05" in done.stdout


def test_what_each_matching_rule_does_is_told(policy: Path) -> None:
    policy.write_text(
        "rules:\n- {name: first, match: {}, set: {deadline: 80ms}}\n- {name: second, match: {}, route: cloud}\n"
        "- {name: third, match: {}, egress: deny}\n"
    )
    request = policy.with_name("request.json")
    request.write_text('{"model": "m", "time": "2026-05-01T22:30+02:00", "tags": {"a": "b"}}')
    told = run("explain", policy, "--request", request).stdout
    for words in (
        "first: matches: it decides",
        "second: matches: first before it decides",
        "third: matches: nothing leaves the device",
        "0.08 s",
        'tags: {"a": "b"}',
        'time: "2026-05-01T20:30:00+00:00"',
        "rtt_s: unknown",
    ):
        assert words in told
    known = json.loads(run("explain", policy, "--request", request, "--json").stdout)["signals"]
    assert (known["model"], known["rtt_s"], known["row_sizes_bytes"]) == ("m", None, [0])


def test_a_calibration_is_chosen_for_what_the_request_names(policy: Path) -> None:
    policy.write_text(
        "defaults: {hard: {cloud_share: 20%}}\ncalibrations:\n"
        "- {model: m, edge_digest: a, measure: margin, below: 0.1, cloud_share: 20%}\n"
        "- {model: m, edge_digest: b, measure: margin, below: 0.2, cloud_share: 20%}\n"
    )
    request = policy.with_name("request.json")
    request.write_text('{"model": "m", "edge_digest": "b"}')
    found = json.loads(run("explain", policy, "--request", request, "--json").stdout)["settings"]
    assert {"key": "hard.threshold", "value": 0.2, "from": "calibrations[1]"} in found


def test_the_time_of_a_request_is_in_the_policys_time_zone(policy: Path) -> None:
    policy.write_text("timezone: Asia/Kolkata\nrules: [{name: r, match: {hours: '22:00-23:00'}, route: edge}]\n")
    request = policy.with_name("request.json")
    for text, rule in (("2026-05-01T22:30", "r"), ("2026-05-01T17:00Z", "r"), ("2026-05-01T22:30+02:00", None)):
        request.write_text(json.dumps({"model": "m", "time": text}))
        assert json.loads(run("explain", policy, "--request", request, "--json").stdout)["rule"] == rule
    for text in ("9999-12-31T23:00Z", "0001-01-01T01:00Z"):  # beyond the calendar somewhere
        request.write_text(json.dumps({"model": "m", "time": text}))
        assert "expected a time such as" in str(run("explain", policy, "--request", request).exception)


def test_a_schema_can_be_written(tmp_path: Path) -> None:
    assert run("schema", "--out", tmp_path / "policy.json").exit_code == 0
    assert (tmp_path / "policy.json").read_text() == run("schema").stdout
    assert json.loads(run("schema").stdout)["$schema"] == DIALECT
    assert isinstance(run("schema", "--out", tmp_path / "none" / "policy.json").exception, ConfigError)


def accepts(schema: dict[str, Any], value: Any, root: dict[str, Any]) -> bool:
    """Whether a value is valid by the keywords that our schema uses; another keyword fails the test."""
    told = {"title", "description", "$schema", "$defs"}
    checks: dict[str, Callable[[Any], bool]] = {
        "$ref": lambda ref: accepts(root["$defs"][ref.rpartition("/")[2]], value, root),
        "anyOf": lambda options: any(accepts(option, value, root) for option in options),
        "allOf": lambda options: all(accepts(option, value, root) for option in options),
        "type": lambda kind: kind_of(value) == kind or (kind == "number" and kind_of(value) == "integer"),
        "const": lambda wanted: value == wanted and type(value) is type(wanted),
        "enum": lambda options: value in options,
        "pattern": lambda pattern: re.search(pattern, str(value)) is not None,
        "minLength": lambda least: len(value) >= least,
        "minItems": lambda least: len(value) >= least,
        "minimum": lambda least: not isinstance(value, (int, float)) or value >= least,
        "maximum": lambda most: not isinstance(value, (int, float)) or value <= most,
        "exclusiveMinimum": lambda least: not isinstance(value, (int, float)) or value > least,
        "exclusiveMaximum": lambda most: not isinstance(value, (int, float)) or value < most,
        "required": lambda keys: set(keys) <= set(value),
        "items": lambda inner: all(accepts(inner, one, root) for one in value),
        "properties": lambda keys: all(accepts(keys[key], one, root) for key, one in value.items() if key in keys),
        "additionalProperties": lambda inner: additional(schema, value, inner, root),
    }
    if "type" in schema and not checks["type"](schema["type"]):
        return False
    return all(checks[keyword](argument) for keyword, argument in schema.items() if keyword not in told)


def additional(schema: dict[str, Any], value: dict[str, Any], inner: Any, root: dict[str, Any]) -> bool:
    others = [one for key, one in value.items() if key not in schema.get("properties", {})]
    return not others if inner is False else inner is True or all(accepts(inner, one, root) for one in others)


def kind_of(value: Any) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return kinds[type(value)]


def examples() -> list[str]:
    """The policies on the page."""
    return re.findall(r"^```yaml title=policy.yaml\n(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)


def plain(text: str) -> Any:
    return read_tree(text, None).value


def test_the_schema_accepts_the_policies_of_the_docs() -> None:
    root = policy_schema()
    assert len(examples()) >= 3
    for text in examples():
        assert accepts(root, plain(text), root), text


@pytest.mark.parametrize(
    "text",
    [
        "defaults: {deadline: 100}",
        "defaults: {dead_line: 1s}",
        "defaults: {hard: {measure: gini}}",
        "defaults: {hedge: {after: soon}}",
        "defaults: {budget: {uplink: 5GB}}",
        "rules: [{name: r, match: {hours: nine}, route: edge}]",
        "rules: [{name: r, route: edge}]",
        "rules: [{name: r, match: {}}]",
        "defaults: {on_cloud_failure: {default: }}",
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(text: str) -> None:
    root = policy_schema()
    try:
        assert not accepts(root, plain(text), root)
    except KeyError as error:  # null is none of the kinds that a key may have
        assert error.args == (type(None),)  # noqa: PT017  what is checked is which kind it is

"""Tags fail closed: what a rule looks at is what the caller wrote, or the request is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upwell.shared.config.yaml import parse_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.routing.policy.compiled_policy import CompiledPolicy
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.policy_warnings import warnings
from upwell.shared.routing.policy.request_facts import RequestFacts
from upwell.shared.routing.request_tags import MOST_CHARACTERS, checked_tags


class Text(str):
    """A subclass, which could compare as it likes."""

    __slots__ = ()


def denies(rules: str, tags: dict[str, str]) -> bool:
    compiled = CompiledPolicy(parse_yaml(f"rules: [{rules}]", Policy))
    return bool(compiled.judge(RequestFacts("m", checked_tags(tags), 1, 0.0)).egress_rule)


@pytest.mark.parametrize("value", [True, 1, 1.0, None, b"device", Text("device"), ["device"]])
def test_a_value_that_is_no_plain_string_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="privacy"):
        checked_tags({"privacy": value})


@pytest.mark.parametrize("name", [True, 1, None, b"privacy", Text("privacy")])
def test_a_name_that_is_no_plain_string_is_refused(name: object) -> None:
    with pytest.raises(ValueError, match="expected strings as names"):
        checked_tags({name: "device"})


@pytest.mark.parametrize("tags", [{"file": "\udcff.jpg"}, {"\udcff": "x"}])
def test_text_that_no_log_can_hold_is_refused_and_any_other_is_not(tags: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="expected Unicode text"):
        checked_tags(tags)
    for text in ("ä", "\U0001f600", "\0"):
        assert checked_tags({text: text}) == {text: text}


def test_more_text_than_logs_and_cases_can_hold_is_refused() -> None:
    most = {"note": "x" * (MOST_CHARACTERS - 4)}
    assert checked_tags(most) == most
    with pytest.raises(ValueError, match="expected at most 65536 characters together, got 65537"):
        checked_tags({**most, "a": ""})


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a mapping"):
        checked_tags([("privacy", "device")])  # type: ignore[arg-type]


@given(st.sampled_from(["privacy", "Privacy", "PRIVACY", "pRiVaCy"]), st.sampled_from(["privacy", "Privacy"]))
def test_the_case_of_a_name_counts_neither_in_rules_nor_in_requests(asked: str, written: str) -> None:
    assert denies(f"{{name: r, match: {{tags: {{{written}: device}}}}, egress: deny}}", {asked: "device"})
    assert not denies(f"{{name: r, match: {{tags: {{{written}: device}}}}, egress: deny}}", {asked: "Device"})


def test_an_expression_finds_a_tag_whatever_its_case() -> None:
    pytest.importorskip("cel_expr_python")
    rule = "{name: r, if: 'request.tags.Privacy == \"device\"', egress: deny}"
    assert denies(rule, {"privacy": "device"})
    assert denies(rule, {"PRIVACY": "device"})


def test_one_name_in_two_cases_is_refused_in_requests_and_rules() -> None:
    with pytest.raises(ValueError, match="repeated"):
        checked_tags({"privacy": "device", "Privacy": "cloud"})
    with pytest.raises(ConfigError, match="repeated"):
        parse_yaml("rules: [{name: r, match: {tags: {a: x, A: y}}, egress: deny}]", Policy)


UNLESS = "{name: r, match: {unless_tags: {privacy: [public, shared]}}, egress: deny}"


@pytest.mark.parametrize(
    ("tags", "is_denied"),
    [
        ({}, True),
        ({"privacy": ""}, True),
        ({"privacy": "publc"}, True),
        ({"privcy": "public"}, True),
        ({"privacy": "public"}, False),
        ({"Privacy": "shared", "x": "y"}, False),
    ],
)
def test_unless_tags_denies_what_is_missing_or_unknown(tags: dict[str, str], is_denied: bool) -> None:
    assert denies(UNLESS, tags) is is_denied


def test_every_tag_of_unless_tags_must_be_known() -> None:
    rule = "{name: r, match: {unless_tags: {privacy: public, site: lab}}, egress: deny}"
    assert denies(rule, {"privacy": "public"})
    assert denies(rule, {"privacy": "public", "site": "home"})
    assert not denies(rule, {"privacy": "public", "site": "lab"})


def test_check_recommends_to_deny_by_default() -> None:
    plain = parse_yaml("rules: [{name: r, match: {tags: {privacy: device}}, egress: deny}]", Policy)
    assert "unless_tags" in warnings(plain)["rules", 0, "match", "tags"]
    assert not warnings(parse_yaml(f"rules: [{UNLESS}]", Policy))

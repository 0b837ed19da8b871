"""Rules as expressions: what they may say, what they read, and that whatever fails lets nothing leave the device."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.routing.asking import policy
from tests.unit.routing.asking import request_facts as facts_of
from upwell.shared.errors import ConfigError
from upwell.shared.routing.policy.compiled_policy import CompiledPolicy, RowFacts
from upwell.shared.routing.policy.policy import Policy

pytest.importorskip("cel_expr_python")

NOON_S = datetime.fromisoformat("2024-05-01T12:34:00+00:00").timestamp()


def compiled(*conditions: str, **rule: str) -> CompiledPolicy:
    """Rules with these expressions that deny egress, or do what `rule` says."""
    rules = [{"name": f"r{n}", "if": one, **(rule or {"egress": "deny"})} for n, one in enumerate(conditions)]
    return CompiledPolicy(policy(json.dumps({"rules": rules})))


HOLDS = [
    ("request.size_bytes > 1000000 && link.rtt_s < 0.05", False),
    ("request.size_bytes == 1000", True),
    ("request.model in ['digits', 'pages']", True),
    ("request.tags.camera == 'dock'", True),
    ("request.tags['camera'].startsWith('do')", True),
    ('request.tags["camera"].matches("^d.*k$")', True),
    ("request.tags.none == ''", True),
    ("request.tags['no\\'ne'] == ''", True),
    ("request.hour == 12 && request.minute == 34 && request.weekday == 3", True),
    ("['a', 'do'].exists(p, request.tags.camera.startsWith(p))", True),
    ("link.known", False),
    ("link.rtt_s < 1 && link.up_bytes_per_s > 1000000 && request.size_bytes < 1e6", True),
    ("link.rtt_s == 0.0 && link.up_bytes_per_s > 1e300 && link.down_bytes_per_s > 1e300", True),
    ("edge.predicted_s == 0.0 && !edge.known && cloud.predicted_s == 0.0 && !cloud.known", True),
    ("cloud.breaker_open", False),
    ("request.tags.camera == 'request.nothing' // request.none", False),
]


@pytest.mark.parametrize(("condition", "holds"), HOLDS)
def test_an_expression_reads_the_request_and_what_is_unknown_is_taken_as_good(condition: str, holds: bool) -> None:
    about = facts_of(tags={"camera": "dock"}, wall_time_s=NOON_S)
    verdict = compiled(condition).judge(about)
    assert (verdict.egress_rule == "r0") is holds
    assert verdict.failed_rule == ""


def test_facts_are_read_where_they_are_given() -> None:
    by = compiled(
        "link.known && link.rtt_s < 0.05 && link.up_bytes_per_s > 1e6 && cloud.predicted_s < edge.predicted_s"
    )
    assert by.uses_facts
    good = RowFacts(rtt_s=0.02, up_bytes_per_s=2e6, edge_s=0.1, cloud_s=0.05)
    assert by.judge(facts_of(), good).egress_rule == "r0"
    assert by.judge(facts_of(), RowFacts(rtt_s=0.06, up_bytes_per_s=2e6, edge_s=0.1, cloud_s=0.05)).egress_rule == ""
    assert not compiled("request.size_bytes > 5").uses_facts
    assert not CompiledPolicy(policy("rules: [{name: r, match: {}, route: edge}]")).uses_facts


def test_match_and_if_must_both_hold() -> None:
    rule = "{name: r, match: {tags: {a: x}}, if: 'request.size_bytes > 10', egress: deny}"
    by = CompiledPolicy(policy(f"rules: [{rule}]"))
    cases = itertools.product(("x", "y"), (5, 50))
    found = {
        (tag, size): by.judge(facts_of(tags={"a": tag}, size_bytes=size)).egress_rule == "r" for tag, size in cases
    }
    assert found == {("x", 5): False, ("x", 50): True, ("y", 5): False, ("y", 50): False}


WRONG = [
    ("request.size_bytes >", "not a CEL expression: mismatched input 'end of the expression' (character 21)"),
    ("", "not a CEL expression: mismatched input"),
    (
        "true\n&& foo bar",
        "not a CEL expression: extraneous input 'bar' expecting end of the expression (line 2, character 8)",
    ),
    ("request.sizebytes > 1", "unknown name request.sizebytes; did you mean request.size_bytes?"),
    ("request > 1", "unknown name request"),
    ("request['model'] == 'a'", "unknown name request"),
    ("request.tags == {}", "expected the name of a tag after request.tags"),
    ("'a' in request.tags", "expected the name of a tag after request.tags"),
    ("request.tags[request.model] == 'a'", "expected the name of a tag after request.tags"),
    ("has(request.tags.a)", "has() is not needed"),
    ("user.name == 'a'", "unknown name user"),
    ("now() > 1", "unknown function now; expected one of contains"),
    ("contains(request.model, 'a')", "this function does not exist with these arguments"),
    ("request.size_bytes", "the expression gives a whole number; expected true or false"),
    ("'a'", "the expression gives a string; expected true or false"),
    ("[1].map(x, [x].map(y, y)) == []", "expected at most one of the macros"),
    ("[1].exists(link, link > 0)", "a macro's variable must not be named link"),
    ("request.tags.camera == 5", "== does not take (string, int) (character 21)"),
    ("request.size_bytes > 'a'", "No matching overloads found : _>_(int64, string)"),
    ("request.model.size.x == 1", "expression of type 'string' cannot be the operand of a select operation"),
    ("request.tags.size() == 1", "expected the name of a tag after request.tags"),
    ("(" * 40 + "true" + ")" * 40, "the expression is nested deeper than 32; expected a simpler one"),
    ("1" + "+1" * 40 + " > 0", "the expression is nested deeper than 32; expected a simpler one"),
    ("true" + " && true" * 200, "the expression has 1604 characters; expected at most 1000"),
    ('"""a""" == request.model', "expected a string in single quotes"),
]


@pytest.mark.parametrize(("condition", "expected"), WRONG)
def test_an_expression_that_cannot_work_is_an_error_of_the_file(condition: str, expected: str) -> None:
    with pytest.raises(ConfigError) as error:
        policy(json.dumps({"rules": [{"name": "r", "if": condition, "route": "edge"}]}))
    (problem,) = error.value.problems
    assert (problem.key, problem.line) == ("rules[0].if", 1)
    assert problem.message.startswith(expected)


FAILS = ["int(request.tags.n) > 3", "1 / (request.size_bytes - 1000) > 0", "request.tags.a.matches(request.tags.re)"]


@pytest.mark.parametrize("condition", FAILS)
@pytest.mark.parametrize("does", [{"egress": "deny"}, {"route": "cloud"}, {"route": "edge"}])
def test_a_rule_that_fails_lets_nothing_leave_and_says_so(condition: str, does: dict[str, str]) -> None:
    by = compiled(condition, **does)
    verdict = by.judge(facts_of(tags={"n": "three", "re": "("}))
    assert (verdict.failed_rule, verdict.egress_rule, verdict.rule, verdict.route) == ("r0", "r0", "", None)
    (found,) = by.examine(facts_of(tags={"n": "three", "re": "("}))
    assert found.error
    fine = by.judge(facts_of(tags={"n": "5", "re": "a"}, size_bytes=2000))
    assert fine.failed_rule == ""


def test_a_text_that_is_no_unicode_lets_nothing_leave() -> None:
    verdict = compiled("request.tags.a == 'x'", route="cloud").judge(facts_of(tags={"a": "\ud800"}))
    assert (verdict.failed_rule, verdict.egress_rule) == ("r0", "r0")


def test_the_longest_chains_do_no_harm_on_a_small_stack() -> None:
    script = (
        "import threading\nfrom upwell.shared.config.cel_expressions import MAX_LENGTH\n"
        "from upwell.shared.routing.policy.cel_conditions import check\n"
        "def go():\n"
        "    check('!' * (MAX_LENGTH - 5) + 'true')\n    check('true' + '&&true' * (MAX_LENGTH // 6 - 2))\n"
        "    for text in ('1' + '+1' * (MAX_LENGTH // 2 - 5) + ' > 0', 'true' + '==true' * (MAX_LENGTH // 6 - 2),\n"
        "                 '(' * (MAX_LENGTH // 2 - 4) + 'true' + ')' * (MAX_LENGTH // 2 - 4)):\n"
        "        try:\n            check(text)\n        except ValueError as error:\n            print(error)\n"
        "threading.stack_size(1 << 20)\nthread = threading.Thread(target=go)\nthread.start()\nthread.join()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    refused = "the expression is nested deeper than 32; expected a simpler one\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, 3 * refused, "")


def test_without_the_package_the_file_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "upwell.shared.routing.policy.cel_conditions", None)
    with pytest.raises(ConfigError, match=r"rules\[0\].if: .*pip install 'upwell\[cel\]'"):
        policy("rules: [{name: r, if: 'true', route: edge}]")
    assert policy("rules: [{name: r, match: {}, route: edge}]").rules


def test_policies_without_expressions_import_no_package_for_them() -> None:
    script = (
        "import sys\nfrom upwell.shared.routing.policy.policy import Policy\n"
        "from upwell.shared.routing.decide.router import Router\n"
        "Router(Policy.model_validate({'rules': [{'name': 'r', 'match': {}, 'route': 'edge'}]}))\n"
        "print('cel_expr_python' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


CONDITIONS = ["request.tags.a == 'x'", "request.size_bytes > 100", "int(request.tags.n) > 3", "link.rtt_s < 0.05"]
rules = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "match": st.sampled_from([{}, {"tags": {"a": "x"}}, {"size": {"above": "100B"}}, {"model": "other"}]),
            "if": st.sampled_from(CONDITIONS),
            "egress": st.just("deny"),
            "route": st.sampled_from(["edge", "cloud"]),
        },
    ).filter(lambda rule: {"match", "if"} & rule.keys() and {"egress", "route"} & rule.keys()),
    max_size=4,
)
requests_facts = st.builds(
    facts_of,
    tags=st.fixed_dictionaries({}, optional={"a": st.sampled_from("xy"), "n": st.sampled_from(["1", "5", "five"])}),
    size_bytes=st.sampled_from([50, 500]),
)


def alone(rule: dict[str, Any], about: Any) -> bool:
    """Whether this rule, in a policy of its own, keeps the request on the device."""
    return bool(CompiledPolicy(Policy.model_validate({"rules": [rule]})).judge(about).egress_rule)


@settings(deadline=None, max_examples=60)
@given(rules=rules, about=requests_facts)
def test_egress_holds_whatever_the_order_of_the_rules(rules: list[dict[str, Any]], about: Any) -> None:
    named = [{"name": f"r{index}", **rule} for index, rule in enumerate(rules)]
    expected = any(alone(rule, about) for rule in named)
    for order in itertools.permutations(named):
        by = CompiledPolicy(Policy.model_validate({"rules": list(order)}))
        verdict = by.judge(about)
        assert bool(verdict.egress_rule) is expected
        matched = [rule for rule, found in zip(order, by.examine(about), strict=True) if not found.missed]
        decisive = next((rule["name"] for rule in matched if "route" in rule), "")
        assert verdict.rule == decisive

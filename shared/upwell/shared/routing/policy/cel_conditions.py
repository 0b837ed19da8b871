"""Rules as CEL expressions (`if`): checked when the policy is loaded, evaluated in microseconds."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType

from cel_expr_python import cel

from upwell.shared.config.cel_expressions import ExpressionText, compile_expression, no_verdict
from upwell.shared.routing.policy.request_facts import RequestFacts, RowFacts

_BOOL, _TEXT = cel.Type.BOOL, cel.Type.STRING
# Numbers are dynamically typed, so that `link.rtt_s < 1` needs no `1.0`: CEL compares numbers of different types, but
# its type checker does not allow it.
_NUMBER = cel.Type.DYN

VARIABLES: Mapping[str, cel.Type] = MappingProxyType(
    {
        "request.model": _TEXT,
        "request.tags": cel.Type.Map(_TEXT, _TEXT),
        "request.size_bytes": _NUMBER,
        "request.hour": _NUMBER,
        "request.minute": _NUMBER,
        "request.weekday": _NUMBER,
        "link.known": _BOOL,
        "link.rtt_s": _NUMBER,
        "link.up_bytes_per_s": _NUMBER,
        "link.down_bytes_per_s": _NUMBER,
        "edge.known": _BOOL,
        "edge.predicted_s": _NUMBER,
        "cloud.known": _BOOL,
        "cloud.predicted_s": _NUMBER,
        "cloud.breaker_open": _BOOL,
    }
)
"""The variables and their types. `request.tags` has a field for each tag in an expression."""

_ENVIRONMENT = cel.NewEnv(variables=dict(VARIABLES))

_ROOT = re.compile(r"\b(?:request|link|edge|cloud)\b", re.ASCII)
_TAGS = re.compile(r"\brequest\s*\.\s*tags\b\s*(?:\.\s*(\w+)\b(?!\s*\()|\[\s*\0(\d+)\0\s*\])?", re.ASCII)


def _tags(read: ExpressionText) -> set[str]:
    """The tags in an expression. Raises `ValueError` if it uses `request.tags` in another way."""
    names = set()
    for found in _TAGS.finditer(read.code):
        if found[1] is None and found[2] is None:
            raise ValueError('expected the name of a tag after request.tags, as in request.tags.camera or ["my-tag"]')
        names.add(found[1] or str(_compiled(read.texts[int(found[2])]).eval().value()))
    return names


def check(source: str) -> None:
    """Raise `ValueError` that says what is wrong with an expression, and where."""
    read = ExpressionText(source)
    if "has" in read.calls:
        raise ValueError("has() is not needed: every field is set, and a missing tag is the empty string")
    result = _trial(read, _compiled(source))
    # It may need what an empty request lacks (at run time it fails closed), but the types are always the same.
    if result.type() == cel.Type.ERROR and not str(result.value()).startswith("UNKNOWN: No matching overloads"):
        return
    if result.type() != _BOOL:
        raise ValueError(_no_verdict(result))


def trial_error(source: str) -> str:
    """Why a checked expression cannot be evaluated for a request without tags; "" if it can."""
    result = _trial(ExpressionText(source), _compiled(source))
    return "" if result.type() == _BOOL else _no_verdict(result)


def _trial(read: ExpressionText, program: cel.Expression) -> cel.Value:
    """The value of an expression for an empty request at noon, with all facts unknown."""
    return program.eval(data=_variables(_tags(read), _NOBODY, _NOON, RowFacts()))


_NOBODY = RequestFacts("", {}, 0, 0.0)
_NOON = datetime(2024, 5, 1, 12, 0)


def _variables(tags: Iterable[str], request_facts: RequestFacts, local: datetime, facts: RowFacts) -> dict[str, object]:
    """Variable -> value. Unknown facts get favourable values, so that the cloud is tried and becomes known."""
    return {
        "request.model": request_facts.model,
        "request.tags": {name: request_facts.tags.get(name.lower(), "") for name in tags},
        "request.size_bytes": request_facts.size_bytes,
        "request.hour": local.hour,
        "request.minute": local.minute,
        "request.weekday": local.isoweekday(),
        "link.known": not math.isnan(facts.rtt_s),
        "link.rtt_s": _or(facts.rtt_s, 0.0),
        "link.up_bytes_per_s": _or(facts.up_bytes_per_s, math.inf),
        "link.down_bytes_per_s": _or(facts.down_bytes_per_s, math.inf),
        "edge.known": not math.isnan(facts.edge_s),
        "edge.predicted_s": _or(facts.edge_s, 0.0),
        "cloud.known": not math.isnan(facts.cloud_s),
        "cloud.predicted_s": _or(facts.cloud_s, 0.0),
        "cloud.breaker_open": facts.breaker_open,
    }


def _or(value: float, unknown: float) -> float:
    return unknown if math.isnan(value) else value


def _compiled(source: str) -> cel.Expression:
    return compile_expression(_ENVIRONMENT, source, VARIABLES)


def _no_verdict(result: cel.Value) -> str:
    """Why a result is not true or false."""
    value = result.value()
    return str(value).partition(": ")[2] if result.type() == cel.Type.ERROR else no_verdict(value)


class Conditions:
    """The compiled expressions of a policy. Immutable; their variables are set once per request."""

    def __init__(self, sources: Iterable[str]) -> None:
        self._programs = {source: _compiled(source) for source in sources}
        reads = [ExpressionText(source) for source in self._programs]
        self._tags = tuple(sorted(set().union(*(_tags(read) for read in reads))))
        self._roots = frozenset(name for read in reads for name in _ROOT.findall(read.code))

    @property
    def uses_facts(self) -> bool:
        """Whether any expression uses more than the request."""
        return bool(self._roots - {"request"})

    def context(self, request_facts: RequestFacts, local: datetime, facts: RowFacts) -> cel.Activation:
        """The variables for one request. Raises for texts that are not valid Unicode."""
        return _ENVIRONMENT.Activation(_variables(self._tags, request_facts, local, facts))

    def holds(self, source: str, context: cel.Activation) -> bool:
        """Whether an expression is true. Raises `ValueError` if it cannot be evaluated."""
        result = self._programs[source].eval(context)
        if result.type() != _BOOL:
            raise ValueError(_no_verdict(result))
        return bool(result.value())

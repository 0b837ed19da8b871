"""Rules as CEL expressions (`if`): checked when the policy is loaded, evaluated in microseconds.

The Common Expression Language has no loops and no clock, and its regular expressions take linear time. What could
still hurt is refused when the policy is loaded: expressions that are long or deeply nested (the evaluator recurses on
the stack), and macros inside macros. Names and functions that do not exist are refused there too.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType

import cel

from upwell.shared.routing.policy.request_facts import RequestFacts, RowFacts

MAX_LENGTH = 1000
"""Characters of an expression; a chain of operators takes stack for each."""
MAX_NESTING = 16
"""Brackets inside brackets."""

NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "request": ("model", "tags", "size_bytes", "hour", "minute", "weekday"),
        "link": ("known", "rtt_s", "up_bytes_per_s", "down_bytes_per_s"),
        "edge": ("known", "predicted_s"),
        "cloud": ("known", "predicted_s", "breaker_open"),
    }
)
"""Variable -> its fields. `request.tags` has a field for each tag that an expression names."""

FUNCTIONS = frozenset(
    {"contains", "double", "endsWith", "int", "matches", "size", "startsWith", "string", "timestamp", "uint"}
)

_TEXT = re.compile(r"""[rR]\"[^\"\n]*\"|[rR]'[^'\n]*'|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|//[^\n]*""", re.ASCII)
_MACRO = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(\s*(\w+)\s*,", re.ASCII)
_FIELD = re.compile(r"(?<![\w.])(request|link|edge|cloud)\b\s*(?:\.\s*(\w+))?", re.ASCII)
_TAGS = re.compile(r"(?<![\w.])request\s*\.\s*tags\s*(?:\.\s*(\w+)|\[\s*\0(\d+)\0\s*\])?", re.ASCII)
_HAS = re.compile(r"(?<![\w.])has\s*\(", re.ASCII)
_TROUBLE = re.compile(r"ERROR: <input>:(\d+):(\d+): (?:Syntax error: )?(.*)")


class _Read:
    """An expression with its texts taken out, so that what looks like code is code."""

    def __init__(self, source: str) -> None:
        self.texts: list[str] = []
        self.code = _TEXT.sub(self._keep, source)

    def _keep(self, found: re.Match[str]) -> str:
        if found[0].startswith("//"):
            return " "
        self.texts.append(found[0])
        return f"\0{len(self.texts) - 1}\0"

    def tags(self) -> set[str]:
        """The tags that it names. Raises `ValueError` where it reads `request.tags` in another way."""
        names = set()
        for found in _TAGS.finditer(self.code):
            if found[1] is None and found[2] is None:
                raise ValueError(
                    'expected a tag by its name after request.tags, as in request.tags.camera or ["my-tag"]'
                )
            names.add(found[1] or str(cel.compile(self.texts[int(found[2])]).execute({})))
        return names


def check(source: str) -> None:
    """Raises `ValueError` that says what is wrong with an expression, and where in it."""
    if len(source) > MAX_LENGTH:
        raise ValueError(f"the expression has {len(source)} characters; expected at most {MAX_LENGTH}")
    if '"""' in source or "'''" in source:
        raise ValueError("expected a text in single quotation marks, not in triple ones")
    read = _Read(source)
    _check_nesting(read.code)
    program = _compiled(source)
    _check_names(read, program)
    try:
        result = _trial(read, program)
    except Exception as error:  # noqa: BLE001  it may need what an empty request lacks; at run time it falls closed
        if str(error).startswith("Undefined variable or function"):
            raise ValueError(f"this function does not exist in this form: {error}") from None
    else:
        if not isinstance(result, bool):
            raise ValueError(f"the expression gives {_kind(result)}; expected true or false")


def trial_error(source: str) -> str:
    """Why a checked expression cannot be evaluated for a request without tags; empty where it can."""
    try:
        _trial(_Read(source), _compiled(source))
    except Exception as error:  # noqa: BLE001  whatever it is, it is told to the person who wrote the expression
        return str(error).partition(".")[0]
    return ""


def _trial(read: _Read, program: cel.Program) -> object:
    """What an expression gives for an empty request at noon, with nothing known."""
    result: object = program.execute(cel.Context(variables=_variables(read.tags(), _NOBODY, _NOON, RowFacts())))
    return result


_NOBODY = RequestFacts("", {}, 0, 0.0)
_NOON = datetime(2024, 5, 1, 12, 0)


def _variables(
    tags: Iterable[str], request_facts: RequestFacts, local: datetime, facts: RowFacts
) -> dict[str, dict[str, object]]:
    """Variable -> field -> value. What is not known is taken as good, so that the cloud is tried and becomes known."""
    return {
        "request": {
            "model": request_facts.model,
            "tags": {name: request_facts.tags.get(name.lower(), "") for name in tags},
            "size_bytes": request_facts.size_bytes,
            "hour": local.hour,
            "minute": local.minute,
            "weekday": local.isoweekday(),
        },
        "link": {
            "known": not math.isnan(facts.rtt_s),
            "rtt_s": _or(facts.rtt_s, 0.0),
            "up_bytes_per_s": _or(facts.up_bytes_per_s, math.inf),
            "down_bytes_per_s": _or(facts.down_bytes_per_s, math.inf),
        },
        "edge": {"known": not math.isnan(facts.edge_s), "predicted_s": _or(facts.edge_s, 0.0)},
        "cloud": {
            "known": not math.isnan(facts.cloud_s),
            "predicted_s": _or(facts.cloud_s, 0.0),
            "breaker_open": facts.breaker_open,
        },
    }


def _or(value: float, unknown: float) -> float:
    return unknown if math.isnan(value) else value


def _kind(value: object) -> str:
    return {int: "a whole number", float: "a number", str: "a text", list: "a list", dict: "a map"}.get(
        type(value), "another value"
    )


def _check_nesting(code: str) -> None:
    depth = 0
    for char in code:
        depth += (char in "([{") - (char in ")]}")
        if depth > MAX_NESTING:
            raise ValueError(f"brackets are nested deeper than {MAX_NESTING}; expected a simpler expression")
    if len(_MACRO.findall(code)) > 1:
        raise ValueError("expected at most one of the macros all, exists, exists_one, map and filter")


def _compiled(source: str) -> cel.Program:
    try:
        return cel.compile(source)
    except ValueError as error:
        found = _TROUBLE.search(str(error))
        if found is None:
            raise ValueError(f"not a CEL expression: {error}") from None
        line = "" if found[1] == "1" else f"line {found[1]}, "
        text = re.sub(r" expecting \{.*\}", "", found[3]).replace("<EOF>", "end of the expression")
        raise ValueError(f"not a CEL expression: {text} ({line}character {found[2]})") from None


def _check_names(read: _Read, program: cel.Program) -> None:
    if _HAS.search(read.code):
        raise ValueError("has() is of no use: every field is there, and a missing tag is the empty string")
    bound = set(_MACRO.findall(read.code))
    if bound & set(NAMES):
        raise ValueError(f"a macro's variable must not be called {min(bound & set(NAMES))}")
    for name in program.variables():
        if name not in NAMES and name not in bound:
            raise ValueError(_unknown(name, NAMES))
    for root, field in _FIELD.findall(read.code):
        if field not in NAMES[root]:
            raise ValueError(_unknown(f"{root}.{field}" if field else root, [f"{root}.{one}" for one in NAMES[root]]))
    for name in program.functions():
        if re.fullmatch(r"\w+", name) and name not in FUNCTIONS:
            raise ValueError(f"unknown function {name}; known are {', '.join(sorted(FUNCTIONS))}")
    read.tags()


def _unknown(name: str, known: Iterable[str]) -> str:
    alike = difflib.get_close_matches(name, list(known), n=1)
    return f"unknown name {name}; " + (f"did you mean {alike[0]}?" if alike else f"known are {', '.join(known)}")


class Conditions:
    """The expressions of a policy, compiled. Immutable; what they read is put together once for each request."""

    def __init__(self, sources: Iterable[str]) -> None:
        programs = {source: _compiled(source) for source in sources}
        self._programs = programs
        reads = [_Read(source) for source in programs]
        self._tags = tuple(sorted(set().union(*(read.tags() for read in reads))))
        self._roots = frozenset(name for read in reads for name, _ in _FIELD.findall(read.code))

    @property
    def uses_facts(self) -> bool:
        """Whether any of them reads more than the request."""
        return bool(self._roots - {"request"})

    def context(self, request_facts: RequestFacts, local: datetime, facts: RowFacts) -> cel.Context:
        """What expressions read about one request. Raises `ValueError` for texts that are no Unicode."""
        found = _variables(self._tags, request_facts, local, facts)
        return cel.Context(variables={name: found[name] for name in self._roots})

    def holds(self, source: str, context: cel.Context) -> bool:
        """Whether an expression is true. Raises `RuntimeError` and others where it cannot be evaluated."""
        result = self._programs[source].execute(context)
        if not isinstance(result, bool):
            raise TypeError(f"the expression gives {_kind(result)}; expected true or false")
        return result

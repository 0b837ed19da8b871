"""`where` in `pipelines.yaml`: a condition in CEL, read as far as the file alone allows.

A condition reads `object`, `frame` and `pipeline`. Under the name of a model, or in `answers`, is what that model said
of the object or of the whole frame: `object.helmet.label == "none"`, `object.answers["my-model"].label`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator

MAX_LENGTH = 1000
"""Characters of a condition."""

OBJECT_FIELDS = ("label", "score", "box", "track", "zones", "age_s", "dwell_s")
"""What an object has besides its answers."""
FRAME_FIELDS = ("number", "captured_unix_s", "objects", "route", "reason", "degraded")
"""What a frame has besides its answers."""
_ROOTS = ("object", "frame", "pipeline")

_TEXT = r"""\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"""
_LITERAL = re.compile(rf"[rR]?(?:{_TEXT})|//[^\n]*", re.ASCII)
_FIELD = re.compile(r"(?<![\w.\0])(object|frame)\s*\.\s*(\w+)\b", re.ASCII)
_ANSWER = r"answers\s*(?:\.\s*(\w+)|\[\s*\0(\d+)\0\s*\])"
_ANSWER_OF = re.compile(rf"(?<![\w.\0])(object|frame)\s*\.\s*{_ANSWER}", re.ASCII)
_LABEL = re.compile(
    rf"(?<![\w.\0])object\s*(?:\.\s*(?:{_ANSWER}|(\w+))\s*)?\.\s*label\s*"
    r"(?:[=!]=\s*\0(\d+)\0|in\s*\[((?:\s*\0\d+\0\s*,?)*)\])",
    re.ASCII,
)
_CALL = re.compile(r"(?!in\b)\b(\w+)\s*\(", re.ASCII)
_MACROS = frozenset({"all", "exists", "exists_one", "filter", "map"})
_TROUBLE = re.compile(r"ERROR: <input>:(\d+):(\d+): (Syntax error: )?(.*)")
_UNDECLARED = re.compile(r"undeclared reference to '([^']*)'")
_MISMATCH = re.compile(r"found no matching overload for '_?(.*?)_?' applied to '(\(.*\))'")


@dataclass(frozen=True)
class ConditionNames:
    """What a condition mentions.

    `fields` are pairs of `object` or `frame` and what is read of it. `labels` are pairs of a model, empty for the label
    of the object itself, and a text that its label is compared with.
    """

    fields: frozenset[tuple[str, str]]
    labels: frozenset[tuple[str, str]]


def names_in(text: str) -> ConditionNames:
    """What a checked condition mentions."""
    code, texts = _split(text)
    fields = {(one[1], one[2]) for one in _FIELD.finditer(code) if one[2] != "answers"}
    fields |= {(one[1], one[2] or _unquoted(texts[int(one[3])])) for one in _ANSWER_OF.finditer(code)}
    return ConditionNames(frozenset(fields), frozenset(_labels(code, texts)))


def _split(text: str) -> tuple[str, list[str]]:
    """A condition with its texts taken out, so that what looks like code is code; and the texts."""
    texts: list[str] = []

    def keep(found: re.Match[str]) -> str:
        if found[0].startswith("//"):
            return " "
        texts.append(found[0])
        return f"\0{len(texts) - 1}\0"

    return _LITERAL.sub(keep, text), texts


def _labels(code: str, texts: list[str]) -> Iterator[tuple[str, str]]:
    for one in _LABEL.finditer(code):
        model = one[1] or (_unquoted(texts[int(one[2])]) if one[2] else one[3] or "")
        for index in [one[4]] if one[4] else re.findall(r"\0(\d+)\0", one[5]):
            yield model, _unquoted(texts[int(index)])


def _unquoted(literal: str) -> str:
    """The text of a literal. What CEL alone can read stays as it is written."""
    try:
        return str(ast.literal_eval(literal))
    except (SyntaxError, ValueError):
        return literal[1:-1]


def check_condition(text: object) -> str:
    """The text of a condition that is CEL and gives true or false. Raises `ValueError` that says what is wrong."""
    if not isinstance(text, str):
        raise ValueError("expected an expression as text, such as 'object.label == \"person\"'")
    if not text.strip():
        raise ValueError("the expression is empty; expected one such as 'object.label == \"person\"'")
    if len(text) > MAX_LENGTH:
        raise ValueError(f"the expression has {len(text)} characters; expected at most {MAX_LENGTH}")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("the expression holds half a character; expected Unicode text")
    if '"""' in text or "'''" in text:
        raise ValueError("expected a text in single quotation marks, not in triple ones")
    try:
        environment, types, functions = _environment()
    except ImportError:
        raise ValueError(
            "`where` needs the package cel-expr-python; install upwell[cel] (Python 3.11 or later)"
        ) from None
    try:
        program = environment.compile(text)
    except RuntimeError as error:
        raise ValueError(_complaint(str(error))) from None
    calls = _CALL.findall(_split(text)[0])
    unknown = next((name for name in calls if name not in functions | _MACROS), None)
    if unknown is not None:
        raise ValueError(f"unknown function {unknown}; known are {', '.join(sorted(functions))}")
    if sum(name in _MACROS for name in calls) > 1:
        raise ValueError(f"expected at most one of the macros {', '.join(sorted(_MACROS))}")
    if program.return_type() not in types:
        raise ValueError(
            f"the expression gives {str(program.return_type()).lower()}; expected true or false, as of a comparison"
        )
    return text


Condition: TypeAlias = Annotated[str, BeforeValidator(check_condition)]
"""A pydantic field for a condition; see `check_condition`."""


@cache
def _environment() -> tuple[Any, tuple[Any, ...], frozenset[str]]:
    """What compiles conditions, the types that one may give, and the functions that it may call, as in a policy.

    Raises `ImportError` without the extra `cel`.
    """
    from cel_expr_python import cel

    from upwell.shared.routing.policy.cel_rules import FUNCTIONS

    variables = {"object": cel.Type.DYN, "object.label": cel.Type.STRING, "frame": cel.Type.DYN}
    variables["pipeline"] = cel.Type.STRING
    return cel.NewEnv(variables=variables), (cel.Type.BOOL, cel.Type.DYN), FUNCTIONS | {"has"}


def _complaint(message: str) -> str:
    """What CEL says of an expression that it cannot compile, in one sentence."""
    if "recursion" in message:
        return "the expression is nested deeper than 32; expected a simpler one"
    found = _TROUBLE.search(message)
    if found is None:
        return "not a CEL expression; expected one such as 'object.label == \"person\"'"
    line, character, syntax, text = found.groups()
    undeclared = _UNDECLARED.match(text)
    where = f"character {character}" if line == "1" else f"line {line}, character {character}"
    if undeclared is not None:
        name = undeclared[1].partition(".")[0]
        return f"unknown name {name}; known are {', '.join(_ROOTS)} and the functions of CEL"
    text = re.sub(r" expecting \{.*\}", "", text).replace("<EOF>", "end of the expression")
    text = _MISMATCH.sub(r"\1 does not take \2", text)
    return f"{'not a CEL expression: ' if syntax else ''}{text} ({where})"

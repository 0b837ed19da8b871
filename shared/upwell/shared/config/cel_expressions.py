"""CEL expressions, for rules of policies and conditions of pipelines: compiled, or refused with a one-sentence reason.

The Common Expression Language has no loops and no clock, its regular expressions take linear time, and the evaluator
bounds the nesting. What could still do harm is refused when the file is loaded: long expressions, and macros inside
macros. So are unknown names and functions, and operands of incompatible types. The package that evaluates expressions
is an extra; it is imported by the code that makes an environment.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cel_expr_python import cel

MAX_LENGTH = 1000
"""Maximum length of an expression in characters."""

FUNCTIONS = frozenset(
    {"contains", "double", "endsWith", "int", "matches", "size", "startsWith", "string", "timestamp", "uint"}
)
_MACROS = frozenset({"all", "exists", "exists_one", "filter", "map"})

_LITERAL = re.compile(
    r"""[rR]\"[^\"\n]*\"|[rR]'[^'\n]*'|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|//[^\n]*""", re.ASCII
)
_MACRO = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(\s*(\w+)\s*,", re.ASCII)
_CALL = re.compile(r"(?!in\b)\b(\w+)\s*\(", re.ASCII)
_TROUBLE = re.compile(r"ERROR: <input>:(\d+):(\d+): (Syntax error: )?(.*)")
_UNDECLARED = re.compile(r"undeclared reference to '([^']*)'")
_MISMATCH = re.compile(r"found no matching overload for '[_@]?(.*?)_?' applied to '(\(.*\))'")


class ExpressionText:
    """An expression with its string literals cut out, so that only code is searched for names.

    In `code`, `\\0N\\0` stands for `texts[N]`, which is unchanged, and a space for a comment.
    """

    def __init__(self, source: str) -> None:
        self.texts: list[str] = []
        self.code = _LITERAL.sub(self._keep, source)
        self.calls: list[str] = _CALL.findall(self.code)

    def _keep(self, found: re.Match[str]) -> str:
        if found[0].startswith("//"):
            return " "
        self.texts.append(found[0])
        return f"\0{len(self.texts) - 1}\0"


def compile_expression(
    environment: cel.Env,
    source: str,
    variables: Collection[str],
    functions: Collection[str] = FUNCTIONS,
    known: str = "",
) -> cel.Expression:
    """Compile an expression that may read `variables` of the environment and call `functions`.

    `known` is the list of known names in error messages; empty means all variables. Raises `ValueError` that says what
    is wrong with the expression, and where.
    """
    if len(source) > MAX_LENGTH:
        raise ValueError(f"the expression has {len(source)} characters; expected at most {MAX_LENGTH}")
    if '"""' in source or "'''" in source:
        raise ValueError("expected a string in single quotes, not triple quotes")
    if any("\ud800" <= character <= "\udfff" for character in source):
        raise ValueError("the expression is not valid Unicode text")
    _check_calls(ExpressionText(source), variables, functions)
    try:
        return environment.compile(source)
    except RuntimeError as error:
        raise ValueError(_complaint(str(error), variables, known or ", ".join(variables))) from None


def _check_calls(text: ExpressionText, variables: Collection[str], functions: Collection[str]) -> None:
    macros = _MACRO.findall(text.code)
    if len(macros) > 1:
        raise ValueError("expected at most one of the macros all, exists, exists_one, map and filter")
    for name in macros:
        if any(name == variable.partition(".")[0] for variable in variables):
            raise ValueError(f"a macro's variable must not be named {name}")
    for name in text.calls:
        if name not in functions and name not in _MACROS:
            raise ValueError(f"unknown function {name}; expected one of {', '.join(sorted(functions))}")


def _complaint(message: str, variables: Collection[str], known: str) -> str:
    """CEL's message about an expression that does not compile, in one sentence."""
    if "recursion" in message:
        return "the expression is nested deeper than 32; expected a simpler one"
    found = _TROUBLE.search(message)
    if found is None:
        return f"not a CEL expression: {message}"
    line, character, syntax, text = found.groups()
    undeclared = _UNDECLARED.match(text)
    if undeclared is not None and undeclared[1] in FUNCTIONS:
        return f"this function does not exist with these arguments: {undeclared[1]}"
    if undeclared is not None:
        alike = difflib.get_close_matches(".".join(undeclared[1].split(".")[:2]), variables, n=1)
        offered = f"did you mean {alike[0]}?" if alike else f"expected one of {known}"
        return f"unknown name {undeclared[1]}; {offered}"
    text = re.sub(r" expecting \{.*\}", "", text).replace("<EOF>", "end of the expression")
    text = _MISMATCH.sub(r"\1 does not take \2", text)
    where = f"character {character}" if line == "1" else f"line {line}, character {character}"
    return f"{'not a CEL expression: ' if syntax else ''}{text} ({where})"


def no_verdict(value: object) -> str:
    """Why the value of an expression is not true or false."""
    kinds = {int: "a whole number", float: "a number", str: "a string", list: "a list", dict: "a map"}
    return f"the expression gives {kinds.get(type(value), 'another value')}; expected true or false"

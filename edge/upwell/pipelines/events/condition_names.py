"""The names that a condition (`where`) may read from an object and a frame, and those it mentions, found in its
text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from upwell.shared.config.cel_expressions import ExpressionText

FieldKind: TypeAlias = Literal["text", "number", "truth", "numbers", "texts", "seconds by zone"]

OBJECT_FIELDS: Mapping[str, FieldKind] = {
    "label": "text",
    "score": "number",
    "box": "numbers",
    "track": "number",
    "zones": "texts",
    "age_s": "number",
    "dwell_s": "seconds by zone",
}
"""The fields of an object besides its answers."""
FRAME_FIELDS: Mapping[str, FieldKind] = {
    "number": "number",
    "captured_unix_s": "number",
    "missing": "number",
    "objects": "number",
    "route": "text",
    "reason": "text",
    "degraded": "truth",
}
"""The fields of a frame besides its answers."""
ANSWERS = "answers"
"""The field of objects and frames that holds the models' answers."""

_NAMED = r"(?:\.\s*(\w+)\b(?!\s*\()|\[\s*\0(\d+)\0\s*\])"
_FIELD = re.compile(r"(?<![\w.\0])(object|frame)\s*\.\s*(\w+)\b", re.ASCII)
_ANSWER_OF = re.compile(rf"(?<![\w.\0])(object|frame)\s*\.\s*{ANSWERS}\s*{_NAMED}", re.ASCII)
_READ = re.compile(
    rf"(?<![\w.\0])(object|frame)\s*\.\s*(?:{ANSWERS}\s*{_NAMED}|(\w+)\b)\s*{_NAMED}(?:\s*{_NAMED})?", re.ASCII
)
_DWELL = re.compile(rf"(?<![\w.\0])object\s*\.\s*dwell_s\s*{_NAMED}", re.ASCII)
_LABEL = re.compile(
    rf"(?<![\w.\0])(object|frame)\s*(?:\.\s*(?:{ANSWERS}\s*{_NAMED}|(\w+))\s*)?\.\s*label\s*"
    r"(?:[=!]=\s*\0(\d+)\0|in\s*\[((?:\s*\0\d+\0\s*(?:,|(?=\])))*)\s*\])",
    re.ASCII,
)


@dataclass(frozen=True)
class ConditionNames:
    """The names that a condition mentions.

    `fields` are pairs of `object` or `frame` and the field read. `answers` are such pairs with the models read as
    `answers["my-model"]`; `zones` are those of `object.dwell_s`. `labels` are `object` or `frame`, a model (empty for
    the object's own label) and a text that its label is compared with. `reads` are `object` or `frame`, a model, a
    field of its answer, and a field of that (empty without one). `reads_object`: whether it reads an object.
    """

    fields: frozenset[tuple[str, str]] = frozenset()
    answers: frozenset[tuple[str, str]] = frozenset()
    zones: frozenset[str] = frozenset()
    labels: frozenset[tuple[str, str, str]] = frozenset()
    reads_object: bool = False
    reads: frozenset[tuple[str, str, str, str]] = frozenset()


def names_in(source: str) -> ConditionNames:
    """The names that a condition mentions. The condition need not compile."""
    text = ExpressionText(source)
    return ConditionNames(
        frozenset((one[1], one[2]) for one in _FIELD.finditer(text.code) if one[2] != ANSWERS),
        frozenset((one[1], one[2] or _unquoted(text, one[3])) for one in _ANSWER_OF.finditer(text.code)),
        frozenset(one[1] or _unquoted(text, one[2]) for one in _DWELL.finditer(text.code)),
        frozenset(_labels(text)),
        re.search(r"\bobject\b", text.code) is not None,
        frozenset(_reads(text)),
    )


def _labels(text: ExpressionText) -> Iterator[tuple[str, str, str]]:
    for one in _LABEL.finditer(text.code):
        model = one[2] or (_unquoted(text, one[3]) if one[3] else one[4] or "")
        for index in [one[5]] if one[5] else re.findall(r"\0(\d+)\0", one[6]):
            yield one[1], model, _unquoted(text, index)


def _reads(text: ExpressionText) -> Iterator[tuple[str, str, str, str]]:
    for one in _READ.finditer(text.code):
        model, field, inner = (
            name or (_unquoted(text, quoted) if quoted else "")
            for name, quoted in ((one[2] or one[4], one[3]), (one[5], one[6]), (one[7], one[8]))
        )
        if one[4] not in (ANSWERS, *OBJECT_FIELDS, *FRAME_FIELDS):
            yield one[1], model, field, inner


def _unquoted(text: ExpressionText, index: str) -> str:
    """A string literal without its quotes. One that only CEL can read stays as written."""
    literal = text.texts[int(index)]
    try:
        return str(ast.literal_eval(literal))
    except (SyntaxError, ValueError):
        return literal[1:-1]

"""YAML loading: what is written comes back, and no text whatever does more than raise a `ConfigError`."""

import contextlib
import json
import math
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from tests.examples import examples
from upwell.shared.config.yaml import parse_yaml
from upwell.shared.config.yaml_tree import read_tree
from upwell.shared.errors import ConfigError, Problem
from upwell.shared.signature.model_yaml import ModelDescription
from upwell.shared.units import parse_bytes, parse_seconds, parse_share

printable = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=12)
scalars = st.none() | st.booleans() | st.integers(-(10**39), 10**39) | printable
documents = st.dictionaries(
    printable,
    st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(printable, inner, max_size=4)),
    min_size=1,
    max_size=5,
)


@settings(max_examples=examples(150), deadline=None)
@given(documents)
def test_json_comes_back_as_it_was(document: dict[str, Any]) -> None:
    """JSON is YAML 1.2, with the same values."""
    assert read_tree(json.dumps(document, ensure_ascii=False), None).value == document


@settings(max_examples=examples(150), deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_come_back_as_they_were(number: float) -> None:
    assert read_tree(f"x: {number!r}", None).value == {"x": number}


def problems(text: str, model: type[BaseModel]) -> tuple[Problem, ...]:
    """Empty where the text is read."""
    try:
        parse_yaml(text, model)
    except ConfigError as error:
        return error.problems
    return ()


class File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    items: list[int] = []


@settings(max_examples=examples(300), deadline=None)
@given(st.text(st.sampled_from("ab:-?,[]{}&*!|>'\"%@`#\n\t 01.~<\\\x00\x85\ufeff"), max_size=40) | st.text(max_size=30))
@example("a: &a\n  - *a")
@example("? \n: ")
@example("--- \n...\n---")
def test_any_text_is_read_or_refused(text: str) -> None:
    for model in (File, ModelDescription):
        for problem in problems(text, model):
            assert problem.message


@settings(max_examples=examples(150), deadline=None)
@given(documents)
@example({"[key]": None})
def test_any_document_is_read_or_refused_with_a_place(document: dict[str, Any]) -> None:
    text = json.dumps({"version": 1, "signature": document, "pre": [document], **document}, ensure_ascii=False)
    for problem in problems(text, ModelDescription):
        assert problem.line is not None
        assert problem.column is not None


@settings(max_examples=examples(200), deadline=None)
@given(scalars | st.floats() | st.from_regex(r"-?\d{0,3}\.?\d{0,3} ?(ms|s|m|h|B|kB|MiB|%|GB|kb)?", fullmatch=True))
def test_a_quantity_is_in_range_or_refused(value: object) -> None:
    for parse in (parse_seconds, parse_bytes, parse_share):
        with contextlib.suppress(ValueError):
            assert 0 <= parse(value) < math.inf


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 10**6))
def test_units_agree_with_each_other(number: int) -> None:
    assert parse_seconds(f"{number}s") == parse_seconds(f"{number * 1000}ms")
    assert parse_seconds(f"{number}h") == parse_seconds(f"{number * 60}m") == number * 3600
    assert parse_bytes(f"{number}MiB") == parse_bytes(f"{number * 1024}KiB") == number * 2**20

"""Whatever stands in a pipelines file: it is right, or refused with problems that have a place."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.pipelines.config.models import MODELS
from upwell.pipelines.config.pipelines_check import parse_pipelines
from upwell.shared.config.yaml_tree import read_tree
from upwell.shared.errors import ConfigError, Problem

pytest.importorskip("cel_expr_python")

RIGHT = "\n".join(
    (Path(__file__).parent / name).read_text().removeprefix(start)
    for name, start in (("right_steps.yaml", ""), ("right_sinks.yaml", "version: 1\npipelines:\n"))
)
TREE = read_tree(RIGHT, None).value
WORDS = st.sampled_from(
    [
        *[
            "object",
            "label",
            "score",
            "zones",
            "frame",
            "pipeline",
            "==",
            "!=",
            "in",
            "&&",
            "(",
            ")",
            "[",
            "]",
            ".",
            "door",
            "gate",
            "person",
            "helmet",
            "10s",
            "1%",
        ],
        *["rtsp://", "mqtts://", "{", "}", "null", "true", "0", "-1", "1e999", "'", '"', "#", "?", "@", "�", "\x00"],
    ]
)
TEXTS = st.one_of(st.text(max_size=20), st.lists(WORDS, max_size=8).map(" ".join))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


def places(value: Any, above: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The way to each value of the file."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [above, *(place for key, part in parts for place in places(part, (*above, key)))]


PLACES = places(TREE)[1:]


def check(text: str) -> None:
    """Read it, and see that whatever is said of it has a text and, beyond the syntax, a place."""
    told: Sequence[Problem] = ()
    try:
        _, told = parse_pipelines(text, None, MODELS)
    except ConfigError as error:
        told = error.problems
        if not told:
            raise
    assert [one for one in told if not one.message.strip() or (one.key and one.line is None)] == []


@given(st.text())
def test_any_text(text: str) -> None:
    check(text)


@given(st.integers(0, len(RIGHT)), st.integers(0, 30), TEXTS)
def test_any_change_of_the_text(start: int, length: int, instead: str) -> None:
    check(RIGHT[:start] + instead + RIGHT[start + length :])


@given(st.sampled_from(PLACES), VALUES)
def test_any_value_at_any_place(place: tuple[str | int, ...], value: Any) -> None:
    whole = json.loads(json.dumps(TREE))
    inner = whole
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    check(json.dumps(whole))


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "[]", "pipelines: []", "pipelines: {}", "pipelines: {a: }", r'pipelines: {a: {source: {video: "\0"}}}',
        "&a {pipelines: *a}", "{" * 200, "pipelines: {a: {source: {video: ~nobody-here/x.mp4}}}",
        r'pipelines: {a: {source: {video: "\ud800.mp4"}}}', r'pipelines: {"\ud800": 1}',
        r'pipelines: {a: {source: {folder: x}, events: [{name: a, on: frame, where: "\ud800"}]}}',
        r'pipelines: {a: {source: {folder: x}, events: [{name: a, on: frame, where: "\0"}]}}',
        r'pipelines: {a: {source: {folder: x}, sinks: [{mqtt: {broker: "mqtts://\ud800", topic: "\ud800"}}]}}',
    ],
)  # fmt: skip
def test_texts_that_are_no_pipelines(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_pipelines(text, None, MODELS)

"""`where`: what a condition mentions, and what is said where CEL is missing."""

from __future__ import annotations

import sys

import pytest

from upwell.pipelines.config import where
from upwell.pipelines.config.where import ConditionNames, check_condition, names_in


@pytest.mark.parametrize(
    ("text", "fields", "labels"),
    [
        ('object.label == "person"', {("object", "label")}, {("", "person")}),
        ("object . helmet . label != 'none'", {("object", "helmet")}, {("helmet", "none")}),
        ('object.answers["my-model"].label == "a"', {("object", "my-model")}, {("my-model", "a")}),
        ('object.label in ["a", \'b\' ,"c"]', {("object", "label")}, {("", "a"), ("", "b"), ("", "c")}),
        ('frame.scene.label == "night"', {("frame", "scene")}, set()),
        ('"object.x.label" == pipeline // object.y', set(), set()),
        ("object.score > 0.5 && has(object.helmet.label)", {("object", "score"), ("object", "helmet")}, set()),
        ("an_object.x || object_x.y", set(), set()),
        (r"object.label == 'a\'b'", {("object", "label")}, {("", "a'b")}),
        ("object.label == r'\\d'", {("object", "label")}, {("", "\\d")}),
        ("true", set(), set()),
    ],
)
def test_names_are_those_of_the_code_and_not_of_its_texts(
    text: str, fields: set[tuple[str, str]], labels: set[tuple[str, str]]
) -> None:
    found = names_in(text)
    assert found == ConditionNames(frozenset(fields), frozenset(labels))


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cel_expr_python", None)
    where._environment.cache_clear()
    try:
        with pytest.raises(ValueError, match=r"`where` needs .* upwell\[cel\] \(Python 3.11 or later\)"):
            check_condition("true")
    finally:
        where._environment.cache_clear()


def test_a_long_expression_is_refused_before_it_is_compiled() -> None:
    with pytest.raises(ValueError, match="has 4004 characters; expected at most 1000"):
        check_condition("true" + " || true" * 500)

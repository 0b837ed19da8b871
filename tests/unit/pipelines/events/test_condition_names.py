"""What the text of a condition mentions."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from upwell.pipelines.events.condition_names import ConditionNames, names_in


def names(
    fields: Iterable[tuple[str, str]] = (),
    answers: Iterable[tuple[str, str]] = (),
    zones: Iterable[str] = (),
    labels: Iterable[tuple[str, str, str]] = (),
    reads: Iterable[tuple[str, str, str, str]] = (),
    reads_object: bool = True,
) -> ConditionNames:
    return ConditionNames(
        frozenset(fields), frozenset(answers), frozenset(zones), frozenset(labels), reads_object, frozenset(reads)
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('object.label == "person"', names(fields=[("object", "label")], labels=[("object", "", "person")])),
        (
            "object . helmet . label != 'none'",
            names(
                fields=[("object", "helmet")],
                labels=[("object", "helmet", "none")],
                reads=[("object", "helmet", "label", "")],
            ),
        ),
        (
            'object.answers["my-model"].label == "a" || frame.answers.scene.score > 0.5',
            names(
                answers=[("object", "my-model"), ("frame", "scene")],
                labels=[("object", "my-model", "a")],
                reads=[("object", "my-model", "label", ""), ("frame", "scene", "score", "")],
            ),
        ),
        (
            'object.label in ["a", \'b\' ,"c"]',
            names(fields=[("object", "label")], labels=[("object", "", "a"), ("object", "", "b"), ("object", "", "c")]),
        ),
        ("object.label in []", names(fields=[("object", "label")])),
        (
            'frame.scene.label == "night"',
            names(
                fields=[("frame", "scene")],
                labels=[("frame", "scene", "night")],
                reads=[("frame", "scene", "label", "")],
                reads_object=False,
            ),
        ),
        ('"object.x.label" == pipeline // object.y', names(reads_object=False)),
        (
            "object.score > 0.5 && has(object.helmet.label)",
            names(fields=[("object", "score"), ("object", "helmet")], reads=[("object", "helmet", "label", "")]),
        ),
        (
            "frame.boat['speed'].value > 1 || object.cap.label.startsWith('r') || size(object.answers.cap) > 1",
            names(
                fields=[("frame", "boat"), ("object", "cap")],
                answers=[("object", "cap")],
                reads=[("frame", "boat", "speed", "value"), ("object", "cap", "label", "")],
            ),
        ),
        ("object.dwell_s.door > 1", names(fields=[("object", "dwell_s")], zones=["door"])),
        ("object.dwell_s['back-yard'] > 1", names(fields=[("object", "dwell_s")], zones=["back-yard"])),
        ("object.dwell_s.exists(zone, zone == 'a')", names(fields=[("object", "dwell_s")])),
        ("an_object.x || object_x.y", names(reads_object=False)),
        (r"object.label == 'a\'b'", names(fields=[("object", "label")], labels=[("object", "", "a'b")])),
        ("object.label == r'\\d'", names(fields=[("object", "label")], labels=[("object", "", "\\d")])),
        ("true", ConditionNames()),
    ],
)
def test_names_are_those_of_the_code_and_not_of_its_texts(text: str, found: ConditionNames) -> None:
    assert names_in(text) == found


def test_a_text_that_is_no_condition_takes_no_longer_than_one() -> None:
    assert names_in("object.label in [" + '"a"    ' * 5000).fields == {("object", "label")}

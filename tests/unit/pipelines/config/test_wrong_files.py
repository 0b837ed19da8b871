"""Wrong `pipelines.yaml`s: each is refused with one sentence that says where and what would be right.

`wrong_files.txt` has them as changes of one of the two right files: what is written there, what stands in its place,
and the problem.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.pipelines.config.models import MODELS
from upwell.pipelines.config.pipelines_check import parse_pipelines
from upwell.shared.errors import ConfigError

pytest.importorskip("cel_expr_python")

HERE = Path(__file__).parent
PATH = Path("/etc/upwell/pipelines.yaml")
RIGHT = [(HERE / f"right_{part}.yaml").read_text() for part in ("steps", "sinks", "series")]
WRONG = [tuple(case.split("\n")) for case in (HERE / "wrong_files.txt").read_text().strip().split("\n\n")]


def test_the_right_files_are_right() -> None:
    found = [parse_pipelines(text, PATH, MODELS) for text in RIGHT]
    assert [list(config.pipelines) for config, _ in found] == [["dock"], ["yard", "inbox"], ["motor", "lidar"]]
    assert [str(one).removeprefix(f"{PATH}:") for _, warnings in found for one in warnings] == [
        "7:24: pipelines.dock.steps[1].infer.model: whole frames sent to the cloud for 'people' are not blurred "
        "yet; step 6 blurs",
        "14:7: pipelines.dock.events: there are no sinks, so these events go nowhere",
    ]


def test_there_are_two_hundred_wrong_files() -> None:
    assert len(set(WRONG)) == len(WRONG) >= 200


def changed(written: str, instead: str) -> str:
    """The right file that has the text, with another one in its place."""
    right = next(text for text in RIGHT if written in text)
    return right.replace(written, instead, 1)


def told(text: str) -> list[str]:
    """The problems of a file, each as it stands in `wrong_files.txt`."""
    try:
        parse_pipelines(text, PATH, MODELS)
    except ConfigError as error:
        return [f"  {one}".replace(f"{PATH}:", "", 1) for one in error.problems]
    return []


def test_each_wrong_file_is_refused_with_one_sentence_at_its_place() -> None:
    found = {(written, instead): told(changed(written, instead)) for written, instead, _ in WRONG}
    assert found == {(written, instead): [expected] for written, instead, expected in WRONG}


def test_each_sentence_has_line_column_and_no_password() -> None:
    sentences = [expected for _, _, expected in WRONG]
    assert [one for one in sentences if not re.match(r"  [1-9]\d*:[1-9]\d*: \S.*\S", one)] == []
    assert [one for one in sentences if "secret@" in one or "u:" in one] == []

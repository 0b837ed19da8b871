"""Runs docs/quickstart.md as a reader would (`tests/page_reader.py`), with free ports in place of those of the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.page_reader import ROOT, Reader, blocks, matches, reading, with_free_ports

PAGE = ROOT / "docs" / "quickstart.md"


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with reading(tmp_path, links=["examples"]) as reader:
        yield reader


@pytest.mark.slow
def test_the_page_does_what_it_says(reader: Reader) -> None:
    page = blocks(with_free_ports(PAGE.read_text(encoding="utf-8")))
    assert {block.value for block in page if block.key == "title"} >= {"agent.yaml", "policy.yaml"}
    for block in page:
        reader.do(block)


@pytest.mark.parametrize(
    ("expected", "lines", "same"),
    [
        (["time  1.5 ms", "id 0f" + "0" * 30], ["time  99.9 ms  ", "id 1e" + "1" * 30], True),
        (["route edge"], ["route cloud"], False),
        (["route edge"], ["route edge", "reason hard"], False),
        (["first", "…"], ["first", "second", "third"], True),
        (["first", "…", "last"], ["first", "second"], False),
        (["0.332, 0.8008"], ["0.3319, 0.8012"], True),
        (["0.332, 0.8008"], ["0.432, 0.8008"], False),
        (["16 shapes"], ["15 shapes"], False),
        (["id …, reason hard"], ["id 12, route cloud, reason hard"], True),
        (["id …, reason hard"], ["id 12, reason easy"], False),
    ],
)
def test_output_is_compared(expected: list[str], lines: list[str], same: bool) -> None:
    assert matches(expected, lines) is same

"""docs/SECURITY.md: every promise names a test, and the test is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "SECURITY.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def test_every_row_of_the_promises_names_a_test() -> None:
    promised = PAGE.split("## What is promised")[1].split("## What is not")[0]
    promises = [row for row in promised.splitlines() if row.startswith("| ") and not row.startswith("| promise")]
    assert len(promises) >= 15
    assert [row for row in promises if not NAMED.search(row)] == []


def test_the_tests_that_it_names_are_there() -> None:
    found = NAMED.findall(PAGE)
    assert found
    for file, name in found:
        tree = ast.parse((ROOT / file).read_text())
        tests = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert any(one.startswith("test_") for one in tests), file
        assert not name or name in tests, f"{file}::{name}"


def test_the_readme_links_it() -> None:
    assert "docs/SECURITY.md" in (ROOT / "README.md").read_text(encoding="utf-8")

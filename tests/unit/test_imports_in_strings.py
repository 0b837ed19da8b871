"""Code that tests run in strings, as in another process, imports what exists: no other check reads such code."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests", "shared", "edge", "cloud")
_IMPORT = re.compile(r"\bfrom (upwell(?:\.\w+)+) import (\w+(?: as \w+)?(?:, *\w+(?: as \w+)?)*)")
_WHOLE = re.compile(r"\bimport (upwell(?:\.\w+)*(?:, *upwell(?:\.\w+)*)*)")


def strings_of(path: Path) -> Iterator[str]:
    text = path.read_text()
    if "import upwell" in text or "from upwell" in text:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def names_in(text: str) -> Iterator[tuple[str, str]]:
    """Each module that code imports, and the name that it takes from there."""
    for module, names in _IMPORT.findall(text):
        yield from ((module, name.split()[0]) for name in names.split(","))
    for modules in _WHOLE.findall(text):
        yield from ((module.strip(), "") for module in modules.split(","))


def imported() -> dict[tuple[str, str], str]:
    """Each such import and a file where it stands."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if path != Path(__file__))
    return {name: str(path.relative_to(ROOT)) for path in paths for text in strings_of(path) for name in names_in(text)}


FOUND = imported()


def test_such_imports_are_found() -> None:
    assert FOUND["upwell.shared.oip.grpc.fastpath.inner_parts", "_Waits"] == "tests/benchmarks/test_service_overhead.py"
    assert list(names_in("import upwell.a, upwell.b; from upwell.c import d as e, f")) == [
        ("upwell.c", "d"),
        ("upwell.c", "f"),
        ("upwell.a", ""),
        ("upwell.b", ""),
    ]


@pytest.mark.parametrize(("module", "name"), FOUND)
def test_what_is_imported_in_a_string_exists(module: str, name: str) -> None:
    found = importlib.import_module(module)
    if name and not hasattr(found, name):
        importlib.import_module(f"{module}.{name}")

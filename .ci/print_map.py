"""Print every package and module of the product with the first sentence of its docstring: `make map | grep battery`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PORTIONS = ("shared/upwell", "edge/upwell", "cloud/upwell")
GENERATED = "rpc"


def first_sentence(module: Path) -> str:
    """The docstring up to its first full stop or blank line, in one line."""
    text = ast.get_docstring(ast.parse(module.read_text())) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return paragraph.split(". ")[0].rstrip(".")


def lines_of(folder: Path) -> Iterator[str]:
    """A package before its modules, and these before the packages below."""
    package = folder / "__init__.py"
    yield f"\n{folder.relative_to(ROOT)}/  {first_sentence(package) if package.exists() else ''}".rstrip()
    for module in sorted(folder.glob("*.py")):
        if module != package:
            yield f"  {module.name}  {first_sentence(module)}"
    for below in sorted(folder.iterdir()):
        if below.is_dir() and below.name != GENERATED and any(below.rglob("*.py")):
            yield from lines_of(below)


if __name__ == "__main__":
    for portion in PORTIONS:
        print(*lines_of(ROOT / portion), sep="\n")

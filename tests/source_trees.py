"""The modules of the wheel, parsed: once in each process of a test run, since that takes a second."""

from __future__ import annotations

import ast
import gc
from collections.abc import Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PORTIONS = ("edge", "cloud", "shared", "protos")


@cache
def trees() -> Mapping[Path, ast.Module]:
    """What each module says, by its path relative to the root of the repository."""
    paths = sorted(path for portion in PORTIONS for path in (ROOT / portion / "upwell").rglob("*.py"))
    gc.disable()  # none of it is garbage, and looking for some takes twice as long as parsing
    try:
        return {path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    finally:
        gc.enable()

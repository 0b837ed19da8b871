"""The routing package knows no clock, no I/O, no lock and no chance: read from its source and seen at run time."""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.routing.asking import NOW_S, router, signals
from upwell.shared.config import cel_expressions
from upwell.shared.routing.decide import router as routing_module
from upwell.shared.routing.decide.router_state import RouterState

FOLDER = Path(routing_module.__file__).parents[1]
SOURCES = [*sorted(FOLDER.rglob("*.py")), Path(cel_expressions.__file__)]

STANDARD = {
    "__future__", "array", "bisect", "calendar", "collections", "dataclasses", "datetime", "difflib", "enum",
    "functools", "hashlib", "heapq", "itertools", "math", "operator", "re", "statistics", "types", "typing", "zoneinfo",
}  # fmt: skip
OTHERS = {"numpy", "pydantic", "pydantic_core", "upwell"}
OWN = (
    "upwell.shared.routing", "upwell.shared.config.located_errors", "upwell.shared.config.cel_expressions",
    "upwell.shared.errors", "upwell.shared.tensors", "upwell.shared.units",
    "upwell.shared.value_classes",
)  # fmt: skip
"""What of upwell routing may use; `units` parses text, `tensors` names dtypes."""

BY_NAME = {"cel_conditions.py": {"cel_expr_python"}, "cel_expressions.py": {"cel_expr_python"}}
"""What single modules may import besides; `cel_expr_python` evaluates expressions that can reach nothing."""

FORBIDDEN_CALLS = {"open", "print", "input", "eval", "exec", "compile", "__import__", "breakpoint"}
FORBIDDEN_ATTRIBUTES = {"now", "today", "utcnow", "monotonic", "perf_counter", "sleep", "random", "getenv", "environ"}


def imported(tree: ast.Module) -> set[str]:
    """Every module that is imported anywhere in the file, also inside functions."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add(str(node.module))
    return names


def test_there_is_something_to_read() -> None:
    assert {
        "router.py",
        "compiled_policy.py",
        "policy.py",
        "circuit_breaker.py",
        "budget_ledger.py",
        "router_state.py",
    } <= {s.name for s in SOURCES}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_a_module_imports_only_what_cannot_reach_the_world(source: Path) -> None:
    for name in imported(ast.parse(source.read_text())):
        top = name.partition(".")[0]
        assert top in STANDARD | OTHERS | BY_NAME.get(source.name, set()), f"{source.name} imports {name}"
        if top == "upwell":
            assert name.startswith(OWN), f"{source.name} imports {name}"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_a_module_asks_no_clock_and_touches_no_file(source: Path) -> None:
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in FORBIDDEN_CALLS, f"{source.name}:{node.lineno}"
        if isinstance(node, ast.Attribute):
            assert node.attr not in FORBIDDEN_ATTRIBUTES, f"{source.name}:{node.lineno}"
        assert not isinstance(node, (ast.Global, ast.Nonlocal)), f"{source.name}:{node.lineno}: state of a module"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_a_module_keeps_nothing_that_changes(source: Path) -> None:
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            mutable = isinstance(node.value, (ast.List, ast.Set, ast.ListComp, ast.SetComp, ast.DictComp))
            assert not mutable, f"{source.name}:{node.lineno}"


def test_importing_the_router_brings_no_transport_and_no_runtime() -> None:
    script = "import sys, upwell.shared.routing.decide.router; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    tops = {name.partition(".")[0] for name in found}
    assert not tops & {"grpc", "google", "onnxruntime", "ai_edge_litert", "tflite_runtime", "torch", "PIL", "rich"}
    assert not [name for name in found if name.startswith(("upwell.edge", "upwell.cloud", "upwell.rpc"))]


def test_a_decision_opens_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    by = router("timezone: Europe/Berlin\nrules: [{name: night, match: {hours: '22:00-06:00'}, route: edge}]")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a decision reads a file")

    monkeypatch.setattr(builtins, "open", refuse)
    assert by.decide(RouterState(), signals(), NOW_S)

"""Rules of the house: what lies where, what is public, what may be imported, and what must not be written down."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import upwell.edge
from upwell.shared.routing import reasons

ROOT = Path(__file__).resolve().parents[2]
PORTIONS = ("edge", "cloud", "shared", "protos")


def repository() -> list[Path]:
    """Every file of the repository, relative to its root, without what is ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file()]


FILES = repository()
MODULES = sorted(
    file for file in FILES if file.suffix == ".py" and file.parts[0] in PORTIONS and file.parts[1:2] == ("upwell",)
)
"""Every module of the wheel."""


def dotted(module: Path) -> str:
    """`edge/upwell/edge/agent.py` -> `upwell.edge.agent`."""
    return ".".join(module.with_suffix("").parts[1:]).removesuffix(".__init__")


def test_the_top_level_holds_what_the_design_says_and_no_more() -> None:
    named = {
        "LICENSE", "Makefile", "CHANGELOG.md", "README.md", "constraints.txt", "pyproject.toml",
        "docs", "examples", "tests", *PORTIONS,
    }  # fmt: skip
    found = {file.parts[0] for file in FILES if not file.parts[0].startswith(".")}
    assert found == named
    assert {file.parts[0] for file in FILES} - found == {".ci", ".gitignore", ".pre-commit-config.yaml"}


def test_upwell_is_a_namespace_package() -> None:
    for portion in PORTIONS:
        assert not (ROOT / portion / "upwell/__init__.py").exists()
        assert [path.name for path in (ROOT / portion / "upwell").iterdir() if path.is_file()] == []
    assert upwell.__file__ is None


@pytest.mark.parametrize("portion", ["edge/upwell/edge", "cloud/upwell/cloud", "shared/upwell/shared", "protos/upwell/rpc"])
def test_every_portion_is_typed(portion: str) -> None:
    assert Path(portion, "py.typed") in FILES


def test_an_init_holds_a_docstring_and_deliberate_exports_alone() -> None:
    for module in MODULES:
        if module.name != "__init__.py":
            continue
        body = ast.parse((ROOT / module).read_text()).body
        assert isinstance(body[0], ast.Expr), f"{module} has no docstring"
        assert all(isinstance(node, (ast.Expr, ast.Import, ast.ImportFrom, ast.Assign)) for node in body), module


def test_every_module_says_what_it_is_for() -> None:
    for module in MODULES:
        if not module.name.endswith(("_pb2.py", "_pb2_grpc.py")):
            assert ast.get_docstring(ast.parse((ROOT / module).read_text())), module


def test_every_code_is_documented_where_it_is_defined() -> None:
    """Each member of Reason has a docstring line after it; plans and routes too, but those that are their own names."""
    tree = ast.parse(Path(reasons.__file__).read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for name in ("Reason", "Plan", "Route"):
        body = classes[name].body
        members = {
            node.targets[0].id: isinstance(follower, ast.Expr) and isinstance(follower.value, ast.Constant)
            for node, follower in zip(body, [*body[1:], None])  # noqa: B905  of equal length by construction
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        assert set(members) == {member.name for member in getattr(reasons, name)}
        undocumented = {member for member, documented in members.items() if not documented}
        assert undocumented == ({"EDGE", "CLOUD"} if name == "Route" else set())


def test_the_public_names_are_these() -> None:
    assert sorted(upwell.edge.__all__) == ["Agent", "Answer", "Timings"]
    public = {name for name in vars(upwell.edge.Agent) if not name.startswith("_")}
    assert public == {"close", "from_config", "handle", "infer", "is_closed", "model"}
    fields = [
        "outputs", "route", "reason", "degraded", "plan", "timings", "id", "routes", "edge_digest", "cloud_digest",
    ]  # fmt: skip
    assert list(upwell.edge.Answer.__dataclass_fields__) == fields
    times = ["total_s", "edge_s", "uplink_s", "cloud_queue_s", "cloud_compute_s"]
    assert list(upwell.edge.Timings.__dataclass_fields__) == times


NEEDS_AN_EXTRA = {
    "upwell.cloud.batching.batcher": {},
}

"""`upwell policy check | schema`: the problems of a policy file, and its JSON Schema for editors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from upwell.shared.config.json_schema import editor_schema
from upwell.shared.config.yaml import parse_yaml, read_text
from upwell.shared.config.yaml_tree import dotted, read_tree
from upwell.shared.errors import EXIT_FAILED, ConfigError, Problem, printable
from upwell.shared.files import write_named
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.policy_warnings import warnings
from upwell.tools.terminal import AsJson, PolicyArgument


def check(
    policy: PolicyArgument,
    as_json: AsJson = False,
) -> None:
    """Check a policy file: every problem and warning with line and column. Exit code 1 if there is a problem."""
    text = read_text(policy)
    problems: Sequence[Problem] = ()
    doubts: Sequence[Problem] = ()
    digest = ""
    try:
        parsed = parse_yaml(text, Policy, policy)
        digest = parsed.digest
        doubts = _warnings(parsed, text, policy)
    except ConfigError as error:
        problems = error.problems
    if as_json:
        found = {
            "problems": [one.document() for one in problems],
            "warnings": [one.document() for one in doubts],
        }
        typer.echo(json.dumps({"file": str(policy), "ok": not problems, "digest": digest, **found}))
    else:
        for problem in problems:
            typer.echo(printable(f"error: {problem}"))
        for doubt in doubts:
            typer.echo(printable(f"warning: {doubt}"))
        if not problems:
            typer.echo(printable(f"{policy}: a valid policy, {digest}"))
    if problems:
        raise typer.Exit(EXIT_FAILED)


def _warnings(policy: Policy, text: str, path: Path) -> list[Problem]:
    """The warnings, each at its place in the file or at the nearest one above it."""
    tree = read_tree(text, path)
    found = []
    for location, message in warnings(policy).items():
        place, _ = tree.find(location)
        found.append(Problem(path, place.line, place.column, dotted(location), message))
    return sorted(found, key=lambda one: (one.line or 0, one.column or 0))


def schema(
    out: Annotated[Path | None, typer.Option(help="Write the schema to this file instead of standard output.")] = None,
) -> None:
    """Print the JSON Schema of policy.yaml, by which YAML language servers of editors check the file."""
    text = json.dumps(policy_schema(), indent=2, ensure_ascii=False) + "\n"
    if out is None:
        typer.echo(text, nl=False)
        return
    write_named(out, text.encode())


def policy_schema() -> dict[str, Any]:
    """The schema; see `editor_schema`."""
    return editor_schema(Policy, "Upwell routing policy")

"""`upwell policy check`: lists every problem of a policy file, and what in it may be unintended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from upwell.shared.config.yaml import parse_yaml, read_text
from upwell.shared.config.yaml_tree import dotted, read_tree
from upwell.shared.errors import EXIT_FAILED, ConfigError, Problem
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.policy_warnings import warnings
from upwell.tools.terminal import AsJson, PolicyArgument, printable


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
        found = {"problems": [_document(one) for one in problems], "warnings": [_document(one) for one in doubts]}
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


def _document(problem: Problem) -> dict[str, object]:
    return {"line": problem.line, "column": problem.column, "key": problem.key, "message": problem.message}

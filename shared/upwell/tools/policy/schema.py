"""`upwell policy schema`: the JSON Schema of policy.yaml, for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from upwell.shared.config.json_schema import editor_schema
from upwell.shared.files import write_named
from upwell.shared.routing.policy.policy import Policy


def schema(
    out: Annotated[Path | None, typer.Option(help="Write the schema to this file instead of standard output.")] = None,
) -> None:
    """Print the JSON Schema of policy.yaml. Editors with a YAML language server use it to complete and check the
    file.
    """
    text = json.dumps(policy_schema(), indent=2, ensure_ascii=False) + "\n"
    if out is None:
        typer.echo(text, nl=False)
        return
    write_named(out, text.encode())


def policy_schema() -> dict[str, Any]:
    """The schema; see `editor_schema`."""
    return editor_schema(Policy, "Upwell routing policy")

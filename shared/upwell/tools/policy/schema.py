"""`upwell policy schema`: the JSON Schema of policy.yaml, for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from upwell.shared.files import write_named
from upwell.shared.routing.policy.policy import Policy

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(
    out: Annotated[Path | None, typer.Option(help="Write it to this file instead of standard output.")] = None,
) -> None:
    """Print the JSON Schema of policy.yaml. Editors with a YAML language server complete and check by it."""
    text = json.dumps(policy_schema(), indent=2, ensure_ascii=False) + "\n"
    if out is None:
        typer.echo(text, nl=False)
        return
    write_named(out, text.encode())


def policy_schema() -> dict[str, Any]:
    """The schema (2020-12). Defaults are left out: inside they are plain numbers, in the file they carry units."""
    plain = _without_defaults(Policy.model_json_schema(by_alias=True))
    return {"$schema": DIALECT, **plain, "title": "Upwell routing policy"}


def _without_defaults(node: Any) -> Any:
    """The schema without `default`, and without null: a key that is written is not empty."""
    if isinstance(node, list):
        return [_without_defaults(one) for one in node if one != {"type": "null"}]
    if not isinstance(node, dict):
        return node
    kept = {key: _without_defaults(value) for key, value in node.items() if key != "default" or _is_a_key(value)}
    if len(kept.get("anyOf", ())) == 1:
        kept |= kept.pop("anyOf")[0]
    return kept


def _is_a_key(value: Any) -> bool:
    """Whether `default` is a key of the file here (there is one in `on_cloud_failure`) and not a default."""
    return isinstance(value, dict) and "description" in value

"""JSON Schemas of configuration files, for completion and checks in editors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def editor_schema(model: type[BaseModel], title: str) -> dict[str, Any]:
    """The schema (2020-12) of a file. Defaults are left out: they are plain numbers inside, but have units in the
    file."""
    return {"$schema": DIALECT, **_without_defaults(model.model_json_schema(by_alias=True)), "title": title}


def _without_defaults(node: Any) -> Any:
    """The schema without `default` and without null: a key that is written has a value."""
    if isinstance(node, list):
        return [_without_defaults(one) for one in node if one != {"type": "null"}]
    if not isinstance(node, dict):
        return node
    kept = {key: _without_defaults(value) for key, value in node.items() if key != "default" or _is_a_key(value)}
    if len(kept.get("anyOf", ())) == 1:
        kept |= kept.pop("anyOf")[0]
    return kept


def _is_a_key(value: Any) -> bool:
    """Whether `default` is a key of the file here (`on_cloud_failure` has one) and not a default."""
    return isinstance(value, dict) and "description" in value

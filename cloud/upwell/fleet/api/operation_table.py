"""One table of operations, which yields the routes of the REST interface and its OpenAPI document.

To add operations (each part of the service may have its own table): write one `Operation` each, with pydantic models
for its input and output and a function of an `AdmittedCall`, and name the table in `service/application.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from upwell.fleet.opamp.poll_handler import FleetState
from upwell.fleet.users import Actor, Role, User

BASE = "/api/v1"
Body = TypeVar("Body", bound=BaseModel)
Query = TypeVar("Query", bound=BaseModel)


class Taken(BaseModel):
    """A caller's input: unknown keys are errors, and no value is converted to another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Given(BaseModel):
    """An answer of the service."""

    model_config = ConfigDict(frozen=True)


class Nothing(Taken):
    """No body, or no parameters."""


@dataclass(frozen=True)
class AdmittedCall(Generic[Body, Query]):
    """A call that passed authentication: the caller, the time, and the checked path, body and parameters."""

    user: User
    now_unix_s: float
    path: Mapping[str, str]
    body: Body
    query: Query
    state: FleetState

    @property
    def actor(self) -> Actor:
        """The caller, for the audit log."""
        return Actor(self.user.name, self.now_unix_s)


@dataclass(frozen=True)
class Operation(Generic[Body, Query]):
    """One operation. `path` is below `BASE`, with `{names}`; `run` is called in a thread and raises `UpwellError`s."""

    method: str
    path: str
    name: str
    summary: str
    role: Role
    run: Callable[[AdmittedCall[Body, Query]], BaseModel | None]
    returns: type[BaseModel] | None = None
    body: type[Body] = Nothing  # type: ignore[assignment]  # the bound of Body in an operation without one
    query: type[Query] = Nothing  # type: ignore[assignment]


Table = Sequence[Operation[Any, Any]]

PROBLEM = "application/problem+json"
_STATUSES = {
    "400": "invalid request",
    "401": "missing or unknown token",
    "403": "not allowed for the role",
    "404": "not found",
    "409": "not possible in the current state",
    "413": "too large",
    "429": "too many wrong tokens",
}


def openapi(tables: Sequence[Table], version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document of these operations."""
    schemas: dict[str, Any] = {"Problem": _PROBLEM_SCHEMA}
    paths: dict[str, dict[str, Any]] = {}
    for operation in (one for table in tables for one in table):
        paths.setdefault(BASE + operation.path, {})[operation.method.lower()] = _described(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Upwell fleet", "version": version},
        "security": [{"token": []}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }  # fmt: skip


_PROBLEM_SCHEMA = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"}, "title": {"type": "string"}, "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
}  # fmt: skip


def _described(operation: Operation[Any, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    text = f"Needs the role {operation.role}."
    found: dict[str, Any] = {"operationId": operation.name, "summary": operation.summary, "description": text}
    names = re.findall(r"\{(\w+)\}", operation.path)
    parameters = [{"name": one, "in": "path", "required": True, "schema": {"type": "string"}} for one in names]
    query = operation.query.model_json_schema()
    for name, schema in query.get("properties", {}).items():
        parameters.append(
            {"name": name, "in": "query", "required": name in query.get("required", ()), "schema": schema}
        )
    if parameters:
        found["parameters"] = parameters
    if operation.body is not Nothing:
        found["requestBody"] = {"required": True, "content": {"application/json": _reference(operation.body, schemas)}}
    problem = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    responses: dict[str, Any] = {one: {"description": text, "content": problem} for one, text in _STATUSES.items()}
    if operation.returns is None:
        found["responses"] = {"204": {"description": "done"}, **responses}
    else:
        content = {"application/json": _reference(operation.returns, schemas)}
        found["responses"] = {"200": {"description": "done", "content": content}, **responses}
    return found


def _reference(model: type[BaseModel], schemas: dict[str, Any]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(schema.pop("$defs", {}))
    schemas[model.__name__] = schema
    return {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}

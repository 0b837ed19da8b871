"""`upwell model rollback`: go back from the installed version of a model to the previous one."""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path
from typing import Annotated

import typer

from upwell.edge.config import AgentConfig
from upwell.edge.updates.model_versions.rollback_by_hand import (
    RollbackAnswer,
    RollbackRequest,
    answer_to,
    is_placed,
    place,
)
from upwell.edge.updates.version_state import STATE_NAME, VersionState, read_document, versions_folder
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import EXIT_FAILED, ConfigError

TAKEN_WITHIN_S = 5.0
"""A running agent has accepted the request by then."""
DONE_WITHIN_S = 600.0
"""Allows for compiling the model for its accelerator."""

_POLL_S = 0.05


def rollback(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model's name in agent.yaml.", show_default=False)],
    config: Annotated[Path, typer.Option("--config", "-c", help="The agent.yaml of the device.")],
    below_floor: Annotated[
        bool, typer.Option("--below-floor", help="Go back even from a version that has proven itself.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Go back to the previous version of MODEL; the present one is never installed on this device again.

    A running agent does so at once, a stopped one at its next start. Exit code 1 if it refuses.
    """
    folder = _folder(config, model)
    with ConfigError.on_os_error(folder, "cannot be used"):
        state = read_document(folder / STATE_NAME, VersionState)
        if state is None or not state.current:
            problem = "no version is installed here to roll back; the bundle in agent.yaml is served"
            raise ConfigError.at(None, problem, f"models.{model}.edge.updates")
        request = RollbackRequest(id=secrets.token_hex(8), version=state.current, below_floor=below_floor)
        place(folder, request)
        said = _answer(folder, request)
    if said is None:
        text = f"no agent is running here: version {request.version} is rolled back at the next start"
    elif said.version is None:
        text = f"refused: {said.message}"
    else:
        text = f"version {request.version} was rolled back; {said.message}"
    is_refused = said is not None and said.version is None
    if as_json:
        serves = None if said is None else said.version
        document = {"left": None if is_refused else request.version, "serves": serves, "message": text}
        typer.echo(json.dumps(document))
    else:
        typer.echo(text, err=is_refused)
    if is_refused:
        raise typer.Exit(EXIT_FAILED)


def _folder(path: Path, model: str) -> Path:
    config = load_yaml(path, AgentConfig)
    section = config.models.get(model)
    if section is None:
        known = ", ".join(config.models)
        raise ConfigError.at(path, f"there is no model {model!r}; expected one of {known}", "models")
    if section.edge is None or section.edge.updates is None or config.agent.state_dir is None:
        problem = "it has no `updates`, so agent.yaml alone chooses the version; change `bundle` there"
        raise ConfigError.at(path, problem, f"models.{model}.edge")
    return versions_folder(config.agent.state_dir, model)


def _answer(folder: Path, request: RollbackRequest) -> RollbackAnswer | None:
    """The agent's answer; None if no agent accepts the request."""
    end_s = time.monotonic() + TAKEN_WITHIN_S
    while is_placed(folder):
        if time.monotonic() > end_s:
            return None
        time.sleep(_POLL_S)
    end_s = time.monotonic() + DONE_WITHIN_S
    while (said := answer_to(folder, request)) is None:
        if time.monotonic() > end_s:
            return RollbackAnswer(
                id=request.id, message="the agent accepted the request but has not answered; see its log"
            )
        time.sleep(_POLL_S)
    return said

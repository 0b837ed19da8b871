"""Rolling back by hand: a request file in the folder of a model's versions, and the agent's answer.

Write access to the folder is the permission, so no port is needed. A running agent accepts the request within a second,
a stopped one at its next start.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from upwell.edge.bundle.bundle import Bundle
from upwell.edge.updates.version_state import (
    ROLLBACK_ANSWER_NAME,
    ROLLBACK_REQUEST_NAME,
    ROLLBACK_TAKEN_NAME,
    read_document,
)
from upwell.shared.errors import UpwellError
from upwell.shared.files import write_whole

if TYPE_CHECKING:
    from upwell.edge.updates.version_store import VersionStore

REASON = "by hand"
"""The reason for rejecting a version that was rolled back by hand."""

_READABLE = 0o644  # readable by an agent of another user; the folder is private
_log = logging.getLogger(__name__)


class CannotGoBack(UpwellError):
    """The request cannot be carried out; the text says why."""


class RollbackRequest(BaseModel):
    """Go back from `version` to the previous one, with `below_floor` even below a proven version."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(max_length=64)
    version: int = Field(ge=1)
    below_floor: bool = False


class RollbackAnswer(BaseModel):
    """The outcome of request `id`: the version served instead, or why there is none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    version: int | None = None
    message: str = ""


def place(folder: Path, request: RollbackRequest) -> None:
    """Place a request, replacing a pending one. Raises `OSError`."""
    write_whole(folder / ROLLBACK_REQUEST_NAME, request.model_dump_json().encode(), _READABLE)


def is_placed(folder: Path) -> bool:
    """Whether a request is pending."""
    return (folder / ROLLBACK_REQUEST_NAME).exists()


def _take(folder: Path) -> RollbackRequest | None:
    """Take the pending request; an unreadable one is ignored. Raises `OSError`."""
    taken = folder / ROLLBACK_TAKEN_NAME
    try:
        # Renamed first, so that a request placed meanwhile is not removed unread.
        os.replace(folder / ROLLBACK_REQUEST_NAME, taken)
    except FileNotFoundError:
        return None
    request = read_document(taken, RollbackRequest)
    taken.unlink(missing_ok=True)
    return request


def _answer(folder: Path, said: RollbackAnswer) -> None:
    """Write the answer. Raises `OSError`."""
    write_whole(folder / ROLLBACK_ANSWER_NAME, said.model_dump_json().encode(), _READABLE)


def answer_to(folder: Path, request: RollbackRequest) -> RollbackAnswer | None:
    """The answer to this request, None if there is none yet. Raises `OSError`."""
    found = read_document(folder / ROLLBACK_ANSWER_NAME, RollbackAnswer)
    return found if found is not None and found.id == request.id else None


def carry_out_rollback(store: VersionStore, go_back: Callable[[RollbackRequest, Bundle], None] | None = None) -> None:
    """Carry out a pending request and answer it: `go_back` serves the previous version again.

    Without `go_back` nothing is loaded yet; the then current version is loaded next.
    """
    try:
        request = _take(store.folder)
        if request is None:
            return
        try:
            target = _target(store, request)
            if go_back is not None:
                go_back(request, target)
            store.block(request.version, REASON, target.version)
            message = f"version {target.version} is served" if target.version else "the bundle in agent.yaml is served"
            said = RollbackAnswer(id=request.id, version=target.version, message=message)
        except UpwellError as error:
            _log.warning("model %s: staying on version %d: %s", store.model, request.version, error)
            said = RollbackAnswer(id=request.id, message=str(error))
        _answer(store.folder, said)
    except OSError as error:
        _log.error("model %s: the rollback failed: %s", store.model, error)


def _target(store: VersionStore, request: RollbackRequest) -> Bundle:
    """The verified bundle to go back to. Raises `CannotGoBack` if the request cannot be carried out."""
    if request.version != store.state.current:
        raise CannotGoBack(f"version {store.state.current} is installed now, not {request.version}")
    target = store.open(request.version)
    if target is None:
        raise CannotGoBack("no earlier version is installed on this device")
    if target.version < store.state.floor and not request.below_floor:
        raise CannotGoBack(
            f"version {target.version} is below the floor: version {store.state.floor} has proven itself here; "
            "use --below-floor to go back anyway"
        )
    return target

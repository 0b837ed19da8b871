"""Going back by hand: a request that lies in the folder of a model's versions, and what the agent answered.

Whoever may write there may ask for it, so nothing listens for it. An agent that runs takes the request within a second,
one that does not at its next start.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from upwell.edge.bundle.base import Bundle
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
"""Why a version that was left so is rejected."""

_READABLE = 0o644  # by the agent, where another user ordered; the folder is private
_log = logging.getLogger(__name__)


class CannotGoBack(UpwellError):
    """Why a request is not carried out."""


class RollbackRequest(BaseModel):
    """Leave `version` for the one before it, with `below_floor` also where that is older than one that was proven."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(max_length=64)
    version: int = Field(ge=1)
    below_floor: bool = False


class RollbackAnswer(BaseModel):
    """What became of the request `id`: the version that is served instead, or why there is none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    version: int | None = None
    message: str = ""


def place(folder: Path, request: RollbackRequest) -> None:
    """Put a request there, in the place of one that nobody has taken. Raises `OSError`."""
    write_whole(folder / ROLLBACK_REQUEST_NAME, request.model_dump_json().encode(), _READABLE)


def is_placed(folder: Path) -> bool:
    """Whether a request waits there."""
    return (folder / ROLLBACK_REQUEST_NAME).exists()


def _take(folder: Path) -> RollbackRequest | None:
    """The request that waits there, which does so no more. One that cannot be read is none. Raises `OSError`."""
    taken = folder / ROLLBACK_TAKEN_NAME
    try:
        # By its name first: one that is placed while this one is read must not be removed unread.
        os.replace(folder / ROLLBACK_REQUEST_NAME, taken)
    except FileNotFoundError:
        return None
    request = read_document(taken, RollbackRequest)
    taken.unlink(missing_ok=True)
    return request


def _answer(folder: Path, said: RollbackAnswer) -> None:
    """Put an answer there. Raises `OSError`."""
    write_whole(folder / ROLLBACK_ANSWER_NAME, said.model_dump_json().encode(), _READABLE)


def answer_to(folder: Path, request: RollbackRequest) -> RollbackAnswer | None:
    """The answer to this request, None where there is none yet. Raises `OSError`."""
    found = read_document(folder / ROLLBACK_ANSWER_NAME, RollbackAnswer)
    return found if found is not None and found.id == request.id else None


def carry_out_rollback(store: VersionStore, go_back: Callable[[RollbackRequest, Bundle], None] | None = None) -> None:
    """Carry a request out that waits there and answer it: `go_back` serves the version before again.

    Without it nothing is loaded yet, and what is current afterwards is loaded next.
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
            message = f"version {target.version} is served" if target.version else "what agent.yaml names is served"
            said = RollbackAnswer(id=request.id, version=target.version, message=message)
        except UpwellError as error:
            _log.warning("model %s: stays on version %d: %s", store.model, request.version, error)
            said = RollbackAnswer(id=request.id, message=str(error))
        _answer(store.folder, said)
    except OSError as error:
        _log.error("model %s: the rollback failed: %s", store.model, error)


def _target(store: VersionStore, request: RollbackRequest) -> Bundle:
    """The verified bundle to go back to. Raises `CannotGoBack` where this request must not or cannot be carried out."""
    if request.version != store.state.current:
        raise CannotGoBack(f"version {store.state.current} is installed now, not {request.version}")
    target = store.open(request.version)
    if target is None:
        raise CannotGoBack("no earlier version is installed on this device")
    if target.version < store.state.floor and not request.below_floor:
        raise CannotGoBack(
            f"version {target.version} is below the floor: version {store.state.floor} has proven itself here; "
            "--below-floor goes back anyway"
        )
    return target

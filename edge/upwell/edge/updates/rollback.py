"""Going back by hand: an order that lies in the folder of a model's versions, and what the agent answered.

Whoever may write there may order it, so nothing listens for it. An agent that runs takes the order within a second, one
that does not at its next start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from upwell.edge.bundle.base import Bundle
from upwell.edge.updates.versions_folder import ANSWER_NAME, ORDER_NAME
from upwell.shared.errors import UpwellError
from upwell.shared.files import write_whole

if TYPE_CHECKING:
    from upwell.edge.updates.version_store import VersionStore

REASON = "by hand"
"""Why a version that was left so is rejected."""

_MOST_BYTES = 1 << 16
_READABLE = 0o644  # by the agent, where another user ordered; the folder is private
_log = logging.getLogger(__name__)
_File = TypeVar("_File", bound=BaseModel)


class CannotGoBack(UpwellError):
    """Why an order is not carried out."""


class Order(BaseModel):
    """Leave `version` for the one before it, with `below_floor` also where that is older than one that was proven."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(max_length=64)
    version: int = Field(ge=1)
    below_floor: bool = False


class OrderAnswer(BaseModel):
    """What became of the order `id`: the version that is served instead, or why there is none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    version: int | None = None
    message: str = ""


def place(folder: Path, order: Order) -> None:
    """Put an order there, in the place of one that nobody has taken. Raises `OSError`."""
    write_whole(folder / ORDER_NAME, order.model_dump_json().encode(), _READABLE)


def is_placed(folder: Path) -> bool:
    """Whether an order waits there."""
    return (folder / ORDER_NAME).exists()


def _take(folder: Path) -> Order | None:
    """The order that waits there, which does so no more. One that cannot be read is none. Raises `OSError`."""
    order = _read(folder / ORDER_NAME, Order)
    (folder / ORDER_NAME).unlink(missing_ok=True)
    return order


def _answer(folder: Path, said: OrderAnswer) -> None:
    """Put an answer there. Raises `OSError`."""
    write_whole(folder / ANSWER_NAME, said.model_dump_json().encode(), _READABLE)


def answer_to(folder: Path, order: Order) -> OrderAnswer | None:
    """The answer to this order, None where there is none yet. Raises `OSError`."""
    found = _read(folder / ANSWER_NAME, OrderAnswer)
    return found if found is not None and found.id == order.id else None


def obey(store: VersionStore, go_back: Callable[[VersionStore, Order, Bundle], None]) -> None:
    """Carry an order out that waits there, with `go_back`, and answer it."""
    try:
        order = _take(store.folder)
        if order is None:
            return
        try:
            target = _target(store, order)
            go_back(store, order, target)
            message = f"version {target.version} is served" if target.version else "what agent.yaml names is served"
            said = OrderAnswer(id=order.id, version=target.version, message=message)
        except UpwellError as error:
            _log.warning("model %s: version %d is not left: %s", store.model, order.version, error)
            said = OrderAnswer(id=order.id, message=str(error))
        _answer(store.folder, said)
    except OSError as error:
        _log.error("model %s: an order to go back cannot be carried out: %s", store.model, error)


def _target(store: VersionStore, order: Order) -> Bundle:
    """The verified bundle to go back to. Raises `CannotGoBack` where this order must not or cannot be obeyed."""
    if order.version != store.current:
        raise CannotGoBack(f"version {store.current} is installed by now, and not {order.version}")
    target = store.open(order.version)
    if target is None:
        raise CannotGoBack("there is no version before it on this device")
    if target.version < store.floor and not order.below_floor:
        raise CannotGoBack(
            f"version {target.version} is below the floor: version {store.floor} has proven itself here; "
            "--below-floor goes back nevertheless"
        )
    return target


def _read(path: Path, kind: type[_File]) -> _File | None:
    try:
        with path.open("rb") as file:
            return kind.model_validate_json(file.read(_MOST_BYTES))
    except (FileNotFoundError, ValidationError):
        return None

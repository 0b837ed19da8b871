"""Bringing another edge side of a model into an agent that serves: a new version, or an accelerator that is ready."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Protocol

from upwell.edge.models.served import EdgeModel
from upwell.edge.models.trial import Trial
from upwell.shared.errors import UpwellError

Prepare = Callable[[str, EdgeModel], None]
"""Warms a tested model of that name up; raises `UpwellError` where it cannot run."""

_log = logging.getLogger(__name__)


class Served(Protocol):
    """The agent, as far as switching goes."""

    def replace_edge(self, name: str, edge: EdgeModel, former: EdgeModel | None = None) -> bool:
        """Serve `edge` from now on; with `former` only where that is what is served now."""


class Switching:
    """Switches models of an agent. Safe to use from many threads; no request waits for it.

    `rolled_back` is told, on the thread of a request, which version failed too often and why, once the one before is
    back; it must return at once.
    """

    def __init__(self, agent: Served, prepare: Prepare, rolled_back: Callable[[str, EdgeModel, str], None]) -> None:
        self._agent = agent
        self._prepare = prepare
        self._rolled_back = rolled_back

    def follow(self, name: str, first: EdgeModel, later: Future[EdgeModel]) -> None:
        """Serve the outcome of `later` (an accelerator that is being made ready) in the place of `first`."""
        later.add_done_callback(lambda done: self._take(name, first, done))

    def _take(self, name: str, first: EdgeModel, done: Future[EdgeModel]) -> None:
        try:
            edge = done.result()
            self._prepare(name, edge)
        except CancelledError:
            return
        except UpwellError as error:
            _log.error("model %s stays where it is: %s", name, error)
            return
        if self._agent.replace_edge(name, edge, first):
            _log.info("model %s is ready on %s", name, edge.accelerator or "the CPU")

    def switch(self, name: str, new: EdgeModel, former: EdgeModel | None) -> None:
        """Serve `new` from now on, on trial while `former` stands in for it where it fails.

        Raises `UpwellError` where `new` cannot be warmed up; then nothing has changed.
        """
        self._prepare(name, new)
        if former is not None:
            former.trial = None  # its own predecessor is needed no more
            new.trial = Trial(former.run_now, lambda reason: self._condemn(name, new, former, reason))
        self._agent.replace_edge(name, new)

    def _condemn(self, name: str, new: EdgeModel, former: EdgeModel, reason: str) -> None:
        if self._agent.replace_edge(name, former, new):
            _log.error("model %s went back to the version before: %s", name, reason)
            self._rolled_back(name, new, reason)

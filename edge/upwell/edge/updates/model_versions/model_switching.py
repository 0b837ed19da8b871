"""Switches the edge side of a model in a running agent: to a new version, or to an accelerator that has become
ready.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TYPE_CHECKING, Protocol

from upwell.edge.models.edge_model import EdgeModel, ServedModel
from upwell.edge.models.trial_and_rollback import Trial
from upwell.edge.policy.router_service import RouterService
from upwell.shared.errors import UpwellError
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.settings import HardSettings

if TYPE_CHECKING:
    from upwell.edge.updates.version_store import VersionStore

Prepare = Callable[[str, EdgeModel], None]
"""Warms up a tested model of that name; raises `UpwellError` if it cannot run."""

_log = logging.getLogger(__name__)


class ServingAgent(Protocol):
    """The part of the agent that switching needs."""

    def model(self, name: str) -> ServedModel:
        """The model served now under that name."""

    def replace_edge(self, name: str, edge: EdgeModel, former: EdgeModel | None = None) -> bool:
        """Serve `edge` from now on; with `former` only if that is what is served now."""

    @property
    def router(self) -> RouterService:
        """The router, whose policy says when a row is hard."""


class TrialJudge(Protocol):
    """Learns how a trial ended, on the thread of a request; both methods must return at once."""

    def rejected(self, reason: str) -> None:
        """The version failed too often, and the previous one is back."""

    def proven(self) -> None:
        """The version is reliable, or there is none to go back to."""


class TrialVerdict:
    """A `TrialJudge` that stores the outcome of a version's trial on disk."""

    def __init__(self, store: VersionStore, version: int) -> None:
        self._store, self._version = store, version

    def rejected(self, reason: str) -> None:
        """Never install it again."""
        in_background("roll-back", partial(self._store.block, self._version, reason))

    def proven(self) -> None:
        """It is no longer on trial."""
        in_background("trial", partial(self._store.prove, self._version))


class ModelSwitching:
    """Switches models of an agent. Thread-safe; no request waits for it."""

    def __init__(self, agent: ServingAgent, prepare: Prepare) -> None:
        self._agent = agent
        self.prepare = prepare

    def current(self, name: str) -> EdgeModel | None:
        """The edge side served now."""
        return self._agent.model(name).edge

    def follow(self, name: str, first: EdgeModel, later: Future[EdgeModel]) -> None:
        """Serve the result of `later` (an accelerator being prepared) in place of `first`."""
        later.add_done_callback(lambda done: self._take(name, first, done))

    def _take(self, name: str, first: EdgeModel, done: Future[EdgeModel]) -> None:
        try:
            edge = done.result()
            self.prepare(name, edge)
        except CancelledError:
            return
        except UpwellError as error:
            _log.error("model %s stays where it is: %s", name, error)
            return
        edge.trial, edge.versions = first.trial, first.versions
        if self._agent.replace_edge(name, edge, first):
            _log.info("model %s is ready on %s", name, edge.accelerator or "the CPU")

    def switch(self, name: str, new: EdgeModel, judge: TrialJudge) -> None:
        """Serve the prepared `new` from now on, on trial; the previous version stands in when it fails."""
        former = self.current(name)
        if former is not None:
            former.trial = former.versions = None  # its own predecessor is no longer needed
            self.try_out(name, new, former, judge)
        self._agent.replace_edge(name, new)
        if former is None:
            judge.proven()

    def go_back(self, name: str, left: EdgeModel, former: EdgeModel) -> bool:
        """Serve the prepared `former` in place of `left`; False if that is no longer served."""
        if left.trial is not None:
            left.trial.end()
        return self._agent.replace_edge(name, former, left)

    def try_out(self, name: str, new: EdgeModel, former: EdgeModel, judge: TrialJudge) -> None:
        """Put `new` on trial. The prepared `former` replaces it if it fails too often or is worse."""

        def reject(reason: str) -> None:
            edge = self.current(name)  # it may have moved to its accelerator by now
            is_it = edge is not None and edge.trial is not None and edge.trial.is_rejected
            if is_it and self._agent.replace_edge(name, former, edge):
                _log.error("model %s went back to the previous version: %s", name, reason)
                judge.rejected(reason)

        self.watch(name, (new, former), reject, judge.proven)

    def watch(
        self,
        name: str,
        pair: tuple[EdgeModel, EdgeModel],
        reject: Callable[[str], None],
        prove: Callable[[], None],
        policies: tuple[Policy | None, Policy | None] = (None, None),
    ) -> None:
        """Compare the first of `pair` with the second, which answers when it fails; one of the two callbacks is
        called, once.

        Each version is judged by its own one of the `policies`; None for the current one.
        """
        from upwell.edge.updates.model_versions.version_comparison import Versions  # only new versions are compared

        new, former = pair
        hards = [self._hard(name, edge, policy) for edge, policy in zip(pair, policies, strict=True)]
        new.versions = Versions(new, former, (hards[0], hards[1]))
        former_s = max(former.durations_s, default=math.inf)
        new.trial = Trial(former.run_now, reject, prove, new.versions, former_s)

    def _hard(self, name: str, edge: EdgeModel, policy: Policy | None) -> HardSettings | None:
        pair = ServedModel(name, edge).model_pair
        return self._agent.router.hard_of(name, pair, edge.source.calibrations, policy)


def in_background(name: str, job: Callable[[], object]) -> None:
    """Run `job` on a separate thread; exceptions are logged."""

    def run() -> None:
        try:
            job()
        except Exception:  # noqa: BLE001 (the boundary of a thread)
            _log.exception("%s failed", name)

    threading.Thread(target=run, name=name, daemon=True).start()

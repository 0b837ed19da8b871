"""Serving from the CPU while an accelerator gets ready: some compile a model for minutes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, replace
from pathlib import Path

from upwell.edge.bundle.base import Bundle
from upwell.edge.models.edge_model import EdgeModel
from upwell.edge.models.loading import Loader
from upwell.edge.models.report import RuntimeAttempt
from upwell.edge.models.sections import EdgeSide
from upwell.shared.errors import ConfigError

PATIENCE_S = 2.0
"""An accelerator that is not ready after so long compiles, and the CPU serves meanwhile."""

_Outcome = tuple[EdgeModel | None, Sequence[RuntimeAttempt]]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loading:
    """A model that can be served, and, while an accelerator is being made ready, the one to serve afterwards.

    `final` is None where `model` is final. Else it gives either the model on the accelerator or, where that came to
    nothing, `model` itself, its report brought up to date. It never fails. Cancelling it is closing what it would give.
    """

    model: EdgeModel
    final: Future[EdgeModel] | None = None

    def close(self) -> None:
        """Free what is there and what may come."""
        if self.final is not None and not self.final.cancel():
            self.final.result().close()
        self.model.close()


def start_loading(
    name: str,
    side: EdgeSide,
    *,
    bundle: Bundle | None = None,
    state_dir: Path | None = None,
    patience_s: float = PATIENCE_S,
) -> Loading:
    """Load a model of the configuration; see `Loader`.

    An accelerator that is not ready within `patience_s` goes on getting ready on a thread of its own, which keeps no
    process from ending; one that is a `must`, or whose model cannot run on the CPU, is waited for. Raises `ConfigError`
    with every attempt where the model cannot be run, or not as it must be.
    """
    loader = Loader(name, side, bundle=bundle, state_dir=state_dir)
    if not side.wanted_accelerators:
        return Loading(loader.on_cpu("ready", []))
    outcome = _in_background(loader)
    try:
        edge, attempts = outcome.result(None if loader.must else patience_s)
    except FutureTimeout:
        return _meanwhile(loader, outcome)
    return Loading(edge or _without(loader, attempts))


def load_edge(
    name: str,
    side: EdgeSide,
    *,
    bundle: Bundle | None = None,
    within: Path | None = None,
    state_dir: Path | None = None,
) -> EdgeModel:
    """`start_loading` for who would rather wait."""
    loader = Loader(name, side, bundle=bundle, within=within, state_dir=state_dir)
    if not side.wanted_accelerators:
        return loader.on_cpu("ready", [])
    edge, attempts = loader.on_accelerator()
    return edge or _without(loader, attempts)


def _without(loader: Loader, attempts: Sequence[RuntimeAttempt]) -> EdgeModel:
    """The model after every accelerator was left."""
    if loader.must:
        raise loader.failure(attempts)
    return loader.on_cpu("fallback", attempts)


def _in_background(loader: Loader) -> Future[_Outcome]:
    outcome: Future[_Outcome] = Future()

    def load() -> None:
        try:
            found = loader.on_accelerator()
        except Exception as error:  # noqa: BLE001 (whoever waits must learn how it ended)
            _log.exception("model %s: loading it on an accelerator failed unexpectedly", loader.name)
            found = None, [RuntimeAttempt("the accelerator", f"internal error: {error!r}")]
        outcome.set_result(found)

    threading.Thread(target=load, name=f"load-{loader.name}", daemon=True).start()
    return outcome


def _meanwhile(loader: Loader, outcome: Future[_Outcome]) -> Loading:
    try:
        model = loader.on_cpu("compiling", [])
    except ConfigError as error:
        edge, attempts = outcome.result()
        if edge is None:
            raise ConfigError([*loader.failure(attempts).problems, *error.problems]) from None
        return Loading(edge)
    final: Future[EdgeModel] = Future()

    def settle(outcome: Future[_Outcome]) -> None:
        edge, attempts = outcome.result()
        if not final.set_running_or_notify_cancel():
            if edge is not None:
                edge.close()
            return
        if edge is None:
            model.report = replace(model.report, state="fallback", attempts=[*attempts, *model.report.attempts])
        final.set_result(edge or model)

    outcome.add_done_callback(settle)
    return Loading(model, final)

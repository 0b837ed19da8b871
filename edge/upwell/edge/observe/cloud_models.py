"""Whether the cloud knows the models by the names that agent.yaml gives them: asked early, learnt from answers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from functools import partial

from upwell.edge.models.served import ServedModel
from upwell.edge.policy.router_service import RouterService
from upwell.edge.request.answer import Answer
from upwell.edge.request.record import RequestRecord
from upwell.edge.uplink.egress import METADATA_BYTES, EgressForbidden
from upwell.edge.uplink.uplink import Uplink
from upwell.shared.errors import ConfigError
from upwell.shared.oip.grpc.client import RemoteError, RemoteErrorKind
from upwell.shared.routing.reasons import Reason, Route

TIMEOUT_S = 5.0
"""For one question. Nobody waits for it."""

_UP = frozenset({Route.CLOUD, Route.SPLIT})
_log = logging.getLogger(__name__)


class CloudModels:
    """A wrong name would show only once a hard case came, hours later: so the cloud is asked once about each model.

    At start, on a thread of its own, about those of which no rule says `egress: deny`; about the others after the first
    request that may leave, so that a policy that keeps everything opens no connection. A cloud that does not answer
    says nothing about names: then what it says to requests counts, as it does later in any case.
    """

    def __init__(self, uplink: Uplink | None, models: Mapping[str, ServedModel], router: RouterService) -> None:
        self._uplink, self._models, self._router = uplink, models, router
        self._unasked = {served.name for served in models.values() if uplink is not None and _names(served)}
        self._missing: dict[str, str] = {}
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Ask about every model whose requests may leave."""
        self._begin([name for name in sorted(self._unasked) if not self._router.keeps(name)])

    @property
    def missing(self) -> Mapping[str, str]:
        """Models that the cloud does not know, and by which name it was asked."""
        return self._missing.copy()

    def learn(self, done: RequestRecord, answer: Answer) -> None:
        """Learn from a request and its answer."""
        model, verdict = done.model.name, done.first.verdict
        if model in self._unasked and not verdict.egress_rule and verdict.route != "edge":
            self._begin([model])
        if answer.reason is Reason.CLOUD_MODEL_MISSING:
            self._miss(model, _names(self._models[model])[0], "as it answered a request")
        elif model in self._missing and not _UP.isdisjoint(answer.routes) and self._missing.pop(model, ""):
            _log.info("model %s: the cloud has it now", model)

    def stop(self) -> None:
        """Ask nothing more."""
        self._stopped.set()

    def close(self) -> None:
        """Wait for what is under way. The uplink is closed before, so that it ends."""
        self.stop()
        for thread in self._threads:
            thread.join()

    def _begin(self, models: Sequence[str]) -> None:
        self._unasked.difference_update(models)
        if models and not self._stopped.is_set():
            thread = threading.Thread(target=self._ask, args=(models,), name="cloud-models", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _ask(self, models: Sequence[str]) -> None:
        for model in models:
            for asked in _names(self._models[model]):
                if self._stopped.is_set():
                    return
                try:
                    assert self._uplink is not None  # noqa: S101  or there would be nothing to ask about
                    self._uplink.metadata(asked, partial(self._router.verdict, model, {}, (METADATA_BYTES,)), TIMEOUT_S)
                except RemoteError as error:
                    if error.kind is RemoteErrorKind.NOT_FOUND:
                        self._miss(model, asked, str(error))
                except EgressForbidden:  # by now, or of what has no tags: requests that may leave find out
                    continue
                except ConfigError as error:  # what this device would prove itself with: requests say so too
                    _log.debug("model %s: the cloud was not asked: %s", model, error)

    def _miss(self, model: str, asked: str, text: str) -> None:
        if model not in self._missing:
            self._missing[model] = asked
            _log.warning(
                "model %s: %s: the cloud has no model %r (%r); is `cloud: {model: …}` in agent.yaml right?",
                model, Reason.CLOUD_MODEL_MISSING, asked, text[:500],
            )  # fmt: skip


def _names(served: ServedModel) -> list[str]:
    """What the model and its tails are called up there."""
    return [name for name in (served.cloud_model, *(head.cut.tail for head in served.heads)) if name]

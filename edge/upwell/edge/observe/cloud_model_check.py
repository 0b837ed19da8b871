"""What the cloud says of the models that agent.yaml names: whether it has them, and how it resizes pictures."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping, MutableMapping, Sequence
from functools import partial

from upwell.edge.models.edge_model import ServedModel
from upwell.edge.policy.router_service import RouterService
from upwell.edge.request.answer import Answer
from upwell.edge.request.request import RequestRecord
from upwell.edge.uplink.egress import METADATA_BYTES, EgressForbidden
from upwell.edge.uplink.uplink import Uplink
from upwell.shared.errors import ConfigError
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind
from upwell.shared.oip.introspection import Seen, read_seen
from upwell.shared.routing.reasons import Reason, Route

TIMEOUT_S = 5.0
"""Time limit for one query, which runs in the background."""

AGAIN_S = 10.0
"""Minimum time between two queries about a model: two versions may answer in turn, or a gateway may answer requests
alone."""

_SAID = frozenset(RemoteErrorKind) - {
    RemoteErrorKind.DEADLINE,
    RemoteErrorKind.UNAVAILABLE,
    RemoteErrorKind.CANCELLED,
}
"""Errors that mean that a server answered."""

_UP = frozenset({Route.CLOUD, Route.SPLIT})
_log = logging.getLogger(__name__)


class CloudModels:
    """Asks the cloud once about each model, since a wrong name would otherwise show only with the first hard case.

    At the start, on its own thread, it asks about models without an `egress: deny` rule; about the others after the
    first request that may leave, so that a policy that keeps everything local opens no connection. If the cloud does
    not reply, its answers to requests tell.

    How the cloud's model resizes pictures is kept in `seen`, by the model's name here. This holds for the model of one
    digest: after an answer from another one, or from a cloud of which nothing is known, it asks again. Until it knows,
    pictures go up whole.
    """

    def __init__(
        self,
        uplinks: Sequence[Uplink],
        models: Mapping[str, ServedModel],
        router: RouterService,
        seen: MutableMapping[str, Seen],
    ) -> None:
        self._uplinks, self._models, self._router, self._seen = uplinks, models, router, seen
        self._asking: set[str] = set()
        self._asked_at_s: dict[str, float] = {}
        self._unasked = {served.name for served in models.values() if _names(served)}
        self._missing: dict[str, str] = {}
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Ask about every model whose requests may leave."""
        self._begin([name for name in sorted(self._unasked) if not self._router.keeps(name)])

    @property
    def missing(self) -> Mapping[str, str]:
        """Models that the cloud does not have, with the names used there."""
        return self._missing.copy()

    def learn(self, done: RequestRecord, answer: Answer) -> None:
        """Learn from a request and its answer."""
        model, verdict = done.model.name, done.first.verdict
        if model in self._unasked and not verdict.egress_rule and verdict.route != "edge":
            self._begin([model])
        elif answer.cloud_digest and not answer.cut and self._is_stale(model, answer.cloud_digest):
            self._seen.pop(model, None)
            if time.monotonic() - self._asked_at_s.get(model, -math.inf) >= AGAIN_S:
                self._begin([model])
        if answer.reason is Reason.CLOUD_MODEL_MISSING:
            self._miss(model, _names(self._models[model])[0], "its answer to a request")
        elif model in self._missing and not _UP.isdisjoint(answer.routes) and self._missing.pop(model, ""):
            _log.info("model %s: the cloud has the model now", model)

    def stop(self) -> None:
        """Ask nothing more."""
        self._stopped.set()

    def close(self) -> None:
        """Wait for queries in progress. The uplink is closed first, so that they end."""
        self.stop()
        for thread in self._threads:
            thread.join()

    def _is_stale(self, model: str, digest: str) -> bool:
        """Whether what is known of its pictures is of another model than the one of that digest."""
        seen = self._seen.get(model)
        is_other = seen is None or seen.digest not in ("", digest)
        return is_other and model not in self._asking and self._takes_pictures(model)

    def _takes_pictures(self, model: str) -> bool:
        served = self._models[model]
        return bool(served.cloud_model and served.entry_model is not None and served.entry_model.pictures)

    def _begin(self, models: Sequence[str]) -> None:
        self._unasked.difference_update(models)
        self._asked_at_s.update(dict.fromkeys(models, time.monotonic()))
        if not models or self._stopped.is_set():
            return
        self._asking.update(models)
        thread = threading.Thread(target=self._ask, args=(models,), name="cloud-models", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread is left: the request was answered, and later answers tell as well
            self._asking.difference_update(models)
            _log.warning("the cloud is not asked about %s now: %s", ", ".join(models), error)
        else:
            self._threads = [one for one in self._threads if one.is_alive()] + [thread]

    def _ask(self, models: Sequence[str]) -> None:
        for model in models:
            try:
                self._ask_for(model)
            except Exception as error:  # noqa: BLE001  whatever an answer holds: the other models are asked about too
                _log.error("model %s: asking the cloud about it failed", model, exc_info=error)
            finally:
                self._asking.discard(model)

    def _ask_for(self, model: str) -> None:
        for asked in _names(self._models[model]):
            if self._stopped.is_set():
                return
            try:
                self._ask_over_first(model, asked)
            except RemoteError as error:
                if error.kind is RemoteErrorKind.NOT_FOUND:
                    self._miss(model, asked, repr(str(error)[:500]))
            except EgressForbidden:  # denied by now, or without tags: requests that may leave will tell
                continue
            except ConfigError as error:  # the device's own credentials are wrong: requests report it too
                _log.debug("model %s: the cloud was not asked: %s", model, error)

    def _ask_over_first(self, model: str, asked: str) -> None:
        """Ask over the first network interface by which the cloud can be reached."""
        *preferred, last = self._uplinks
        for uplink in preferred:
            try:
                return self._ask_about(uplink, model, asked)
            except RemoteError as error:
                if error.kind in _SAID:
                    raise
        return self._ask_about(last, model, asked)

    def _ask_about(self, uplink: Uplink, model: str, asked: str) -> None:
        judge = partial(self._router.verdict, model, {}, (METADATA_BYTES,))
        uplink.metadata(asked, judge, TIMEOUT_S)
        if asked != self._models[model].cloud_model or not self._takes_pictures(model):
            return
        try:
            seen = read_seen(uplink.config_parameters(asked, judge, TIMEOUT_S))
        except RemoteError as error:  # an extension that other servers may lack
            if error.kind not in _SAID:
                raise
            seen = Seen()
        self._seen[model] = seen
        for name, resize in seen.resizes.items():
            height, width = resize.to
            _log.info(
                "model %s: input %s: the cloud resizes pictures to %d x %d (%s), so larger ones are sent shrunk",
                model, name, width, height, resize.fit,
            )  # fmt: skip

    def _miss(self, model: str, asked: str, evidence: str) -> None:
        if model not in self._missing:
            self._missing[model] = asked
            _log.warning(
                "model %s: %s: the cloud has no model %r (%s); is `cloud: {model: …}` in agent.yaml right?",
                model, Reason.CLOUD_MODEL_MISSING, asked, evidence,
            )  # fmt: skip


def _names(served: ServedModel) -> list[str]:
    """The names of the model and its tails in the cloud."""
    return [name for name in (served.cloud_model, *(head.cut.tail for head in served.heads)) if name]

"""What an agent is made of, and how a request goes through it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TypeVar

from upwell.edge.admission.rate_limits import Admission
from upwell.edge.models.edge_model import EdgeModel
from upwell.edge.models.report import ModelHealth
from upwell.edge.models.served import ServedModel
from upwell.edge.observe.cloud_models import CloudModels
from upwell.edge.observe.flight_recorder.recorder import FOLDER_NAME, LIMIT, FlightRecorder
from upwell.edge.observe.flight_recorder.request_trace import RequestTrace
from upwell.edge.observe.health import health_of
from upwell.edge.observe.metrics import AgentMetrics
from upwell.edge.observe.outcome_recorder import OutcomeRecorder
from upwell.edge.policy.housekeeping import BUDGETS_NAME, BudgetFile, Housekeeping
from upwell.edge.policy.policy_check import check_policy
from upwell.edge.policy.policy_file import PolicyFile
from upwell.edge.policy.router_service import RouterService
from upwell.edge.request.answer import Answer
from upwell.edge.request.context import RequestContext
from upwell.edge.request.driver import RequestDriver
from upwell.edge.request.record import RequestRecord
from upwell.edge.request.request import Ids, Request, as_arrays, as_tags
from upwell.edge.request.spans import end_request
from upwell.edge.server.state_dir import StateDir
from upwell.edge.spool.drainer import CaseSender
from upwell.edge.spool.item import SpoolLimits
from upwell.edge.spool.sender import SpoolSender
from upwell.edge.spool.sinks import CallbackSink, Sink
from upwell.edge.spool.spool import FILE_NAME, Spool
from upwell.edge.uplink.uplink import Uplink
from upwell.shared.errors import ConfigError, DeadlineExceeded, ModelNotFound, Unavailable, UpwellError
from upwell.shared.routing.decide.state import EdgeRan
from upwell.shared.routing.egress import dropped_denies
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.tags import NO_TAGS
from upwell.shared.telemetry.tracer import Tracer
from upwell.shared.tensors import Array

CoreT = TypeVar("CoreT", bound="AgentCore")
_log = logging.getLogger(__name__)


class AgentCore:
    """Serves models in this process. Safe to use from many threads; close it, or use it as a context manager."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        uplink: Uplink | None,
        policy: Policy,
        *,
        name: str = "agent",
        state_dir: StateDir | None = None,
        flights: int = LIMIT,
        spool: SpoolLimits | None = None,
        sinks: Sequence[Sink] = (),
        tracer: Tracer | None = None,
    ) -> None:
        self.name = name
        self._models = {model.name: model for model in models}
        self.models: Mapping[str, ServedModel] = MappingProxyType(self._models)
        """What is served now. A request keeps to the version that it found here."""
        self._switching = threading.Lock()
        self.uplink = uplink
        self.router = RouterService(
            policy,
            {model.name: model.model_pair for model in models},
            {model.name: model.edge.calibrations for model in models if model.edge and model.edge.calibrations},
        )
        for model in models:
            for duration_s in model.edge.durations_s if model.edge else ():
                self.router.observe(EdgeRan(model.name, 1, duration_s))
            for head in model.heads:
                for duration_s in head.edge.durations_s:
                    self.router.observe(EdgeRan(head.way.key, 1, duration_s))
        self.metrics = AgentMetrics(lambda: self.router.state, self.health, name, lambda: self.policy_problem)
        self._context = RequestContext(self.router, uplink, self.metrics, Admission(), tracer, name)
        self._state_dir = state_dir
        folder = None if state_dir is None else state_dir.path
        self.flights = FlightRecorder(None if folder is None else folder / FOLDER_NAME, flights)
        self._outcome_recorder = None if folder is None else OutcomeRecorder(folder, self.models, self.router)
        if self._outcome_recorder is not None:
            self.metrics.watch_log(self._outcome_recorder.recorded)
        # Before anything is sent: what a restart finds in the spool must not be paid for twice.
        self._budgets = None if folder is None else BudgetFile(folder / BUDGETS_NAME, self.router)
        self.spool: Spool | None = None
        if uplink is not None:
            uplink.watch(self.router.observe, self.router.wants_probe)
            if folder is not None and self._outcome_recorder is not None:
                sender = SpoolSender(self.router, uplink, self.models)
                self.spool = Spool(
                    folder / FILE_NAME,
                    limits=spool or SpoolLimits(),
                    sender=CaseSender(sender.send, sender.may_send, sender.left_alone, sender.still_allowed),
                    sinks=[*sinks, CallbackSink(self._outcome_recorder.take, "agent")],
                )
                self._outcome_recorder.spool = self.spool
                self.metrics.watch_spool(self.spool)
        self._housekeeping: Housekeeping | None = None
        self._policy_file: PolicyFile | None = None
        self._cloud_models = CloudModels(uplink, self.models, self.router)
        self.metrics.watch_cloud_models(lambda: self._cloud_models.missing)
        self._ids = Ids()
        self._on_close = ExitStack()
        self._on_close.callback(self._cloud_models.stop)
        self._closed = False

    def look_after(self, policy: Path | None) -> None:
        """From now on take changes of this policy file over, keep what is spent of budgets, and check cloud models."""
        jobs: list[Callable[[], None]] = []
        if policy is not None:
            file = self._policy_file = PolicyFile(policy, self._take_policy)
            if file.policy != self.router.policy:  # it was written while the models were loaded
                file.problem = self._take_policy(file.policy)
            jobs.append(file.poll)
        jobs += [] if self.uplink is None else [self.uplink.heed_policy]  # after the policy, so in the same turn
        jobs += [] if self._budgets is None else [self._budgets.save]
        self._housekeeping = Housekeeping(*jobs)
        self._cloud_models.start()

    def _take_policy(self, policy: Policy) -> str:
        """Decide by this policy from now on, or say why not."""
        former = self.router.policy
        dropped = dropped_denies(former, policy)
        if dropped and policy.replaces != former.digest:
            return (
                f"it would let leave the device what is kept by {', '.join(map(repr, dropped))} with egress: deny; if "
                f"that is meant, write `replaces: {former.digest}` into it"
            )
        try:
            check_policy(policy, self.models.values(), None, has_state_dir=self._state_dir is not None)
        except ConfigError as error:
            return str(error)
        self.router.replace_policy(policy)
        for name in dropped:
            _log.warning("the policy no longer has the egress rule %r, as it says by `replaces`", name)
        _log.info("the policy has changed: %s", self.router.digest)
        return ""

    @property
    def policy_problem(self) -> str:
        """Why what is in the policy file is not in force; empty where it is."""
        return "" if self._policy_file is None else self._policy_file.problem

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Array | bytes],
        *,
        deadline_s: float = math.inf,
        tags: Mapping[str, str] = NO_TAGS,
        id: str = "",
        traceparent: str = "",
    ) -> Answer:
        """Answer one request, wherever that is best.

        `inputs` maps the signature's input names to arrays whose first dimension is rows; one encoded picture may be
        given as `bytes`, pixels also as uint8 [height, width], [height, width, 1 or 3] or [rows, height, width].
        `deadline_s` is seconds from now; the policy's deadline holds where it is earlier. `traceparent` is the caller's
        place in a trace (W3C Trace Context). Raises `UpwellError`s; see `upwell.shared.errors`.
        """
        arrived_s = time.monotonic()
        served = self._models.get(model) or self.model(model)
        arrays = as_arrays(inputs, served)
        request = Request(model, arrays, arrived_s, arrived_s + deadline_s, as_tags(tags), id, traceparent)
        return self._handle(served, request)

    def handle(self, request: Request) -> Answer:
        """Answer one request."""
        return self._handle(self.model(request.model), replace(request, tags=as_tags(request.tags)))

    def _handle(self, served: ServedModel, request: Request) -> Answer:
        if self._closed:
            raise Unavailable("the agent is closed")
        driver: RequestDriver | None = None
        context = self._context
        if request.traceparent or context.tracer is not None:
            context = context.placed(request.traceparent, request.arrived_s)
        try:
            if not request.arrived_s < request.deadline_s:  # so that NaN is no deadline to work for either
                raise DeadlineExceeded("the deadline had passed when the request arrived")
            driver = RequestDriver(context, served, request, request.id or self._ids.new())
            answer, done = driver.run()
        except UpwellError as error:
            self.metrics.failed(served.name, error)
            failed = None if driver is None else driver.record()
            end_request(context, request, failed, error)
            if failed is not None:
                self.flights.note(
                    RequestTrace.of(failed, error, self.router.recent, time.monotonic(), self.router.digest)
                )
            raise
        return self._kept(done, answer, context, request)

    def _kept(self, done: RequestRecord, answer: Answer, context: RequestContext, request: Request) -> Answer:
        """The answer, once what is to be kept of the request is on its way to the disk."""
        if self._outcome_recorder is not None:
            answer = self._outcome_recorder.keep(done, answer)
        model = done.model.name
        self.metrics.answers.add(model, answer.route, answer.reason, answer.timings.total_s)
        self._cloud_models.learn(done, answer)
        if done.first.verdict.failed_rule:
            self.metrics.rule_failed(done.first.verdict.failed_rule)
        self.flights.note(RequestTrace.of(done, answer, self.router.recent, time.monotonic(), self.router.digest))
        if answer.cloud_digest:
            if not answer.cut:  # a tail is not the model in the cloud that calibrations are about
                self.router.identify_cloud(model, answer.cloud_digest)
            if self.spool is not None:
                self.spool.cloud_answered()
        if answer.degraded:
            self.metrics.degraded(model, answer.reason)
            _log.debug("degraded answer: model=%s reason=%s id=%s", model, answer.reason, answer.id)
        if context.trace is not None:
            end_request(context, request, done, answer)
        return answer

    def replace_edge(self, name: str, edge: EdgeModel, former: EdgeModel | None = None) -> bool:
        """Answer with this edge side from now on; requests under way end on the one that they began with.

        It is loaded, tested and warmed up. Nothing is closed: the one before goes once the last request that holds it
        has ended. With `former` nothing happens, and the answer is False, unless that is what is served now.
        """
        with self._switching:
            served = self.model(name)
            if former is not None and served.edge is not former:
                return False
            if served.edge is not None:
                edge.scheduler = served.edge.scheduler
                edge.scheduler.resize(edge.runtime.instances)
            heads = served.heads if edge.heads is None else edge.heads
            for head in heads:
                head.edge.scheduler = edge.scheduler
            served = replace(served, edge=edge, heads=heads)
            self.router.replace_model(name, served.model_pair, edge.calibrations, edge.durations_s)
            self._models[name] = served
        return True

    def health(self) -> Sequence[ModelHealth]:
        """How each model on the device fares: where it runs, how that is known, and why it is not where it should."""
        return health_of(self.models.values(), self.router.misfit)

    def model(self, name: str) -> ServedModel:
        """The model of that name. Raises `ModelNotFound` with those that there are."""
        try:
            return self.models[name]
        except KeyError:
            known = ", ".join(sorted(self.models)) or "none"
            raise ModelNotFound(f"unknown model {name!r}; this agent serves: {known}") from None

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close_with(self, part: Callable[[], None]) -> None:
        """Have this called first when the agent is closed."""
        self._on_close.callback(part)

    def close(self) -> None:
        """Free models and channels. Requests after it raise `Unavailable`; calling it twice is harmless."""
        self._closed = True
        self._on_close.close()
        if self.spool is not None:
            self.spool.news.close()
        if self.uplink is not None:
            self.uplink.close()  # first, since it ends the call that the spool may have under way
        self._cloud_models.close()
        for part in (
            self.spool,
            self._outcome_recorder,
            self._housekeeping,
            self.flights,
        ):  # the spool may spend of a budget yet
            if part is not None:
                part.close()
        for model in self.models.values():
            if model.edge is not None:
                model.edge.close()
            for head in model.heads:
                head.edge.close()
        if self._state_dir is not None:
            self._state_dir.close()

    def __enter__(self: CoreT) -> CoreT:
        """The agent itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

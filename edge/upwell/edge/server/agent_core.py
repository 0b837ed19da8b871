"""The core of an agent: its parts, and the handling of a request."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from upwell.edge.admission.request_admission import Admission
from upwell.edge.models.edge_model import EdgeModel, ModelHealth, ServedModel
from upwell.edge.observe.agent_health import HealthPart, document, drift_part, health_of
from upwell.edge.observe.agent_metrics import AgentMetrics
from upwell.edge.observe.flight_recorder import FOLDER_NAME, LIMIT, FlightRecorder
from upwell.edge.observe.request_trace import trace_of
from upwell.edge.policy.periodic_jobs import BUDGETS_NAME, BudgetFile, PeriodicJobs
from upwell.edge.policy.policy_file import PolicyFile, check_policy
from upwell.edge.policy.router_service import ModelChange, RouterService
from upwell.edge.request.answer import Answer, upwell_version
from upwell.edge.request.request import (
    Ids,
    Request,
    RequestContext,
    RequestRecord,
    as_arrays,
    as_tags,
    check_strings,
    checked_deadline,
)
from upwell.edge.request.request_driver import RequestDriver
from upwell.edge.request.request_spans import end_request
from upwell.edge.server.state_dir import StateDir
from upwell.shared.errors import ConfigError, DeadlineExceeded, ModelFailed, ModelNotFound, Unavailable, UpwellError
from upwell.shared.oip.codec.tensor_contents import MAX_ID_CHARACTERS, refuse_long_id
from upwell.shared.platform.closing import Closing
from upwell.shared.routing.decide.router_state import EdgeRan
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.request_tags import NO_TAGS
from upwell.shared.telemetry.tracing import Tracer
from upwell.shared.tensors import Array
from upwell.shared.value_classes import value_class

if TYPE_CHECKING:  # imported where an agent has them, since that takes long
    from prometheus_client.core import Metric

    from upwell.edge.case_collection.case_collector import CaseCollector
    from upwell.edge.drift import DriftWatch
    from upwell.edge.observe.cloud_model_check import CloudModels
    from upwell.edge.observe.outcome_recorder import OutcomeRecorder
    from upwell.edge.observe.request_log import RequestLog
    from upwell.edge.observe.shadow_release import ShadowRelease
    from upwell.edge.spool.result_sinks import Sink
    from upwell.edge.spool.spool import Spool
    from upwell.edge.spool.spooled_request import SpoolLimits
    from upwell.edge.updates.releases.release_control import ReleaseControl
    from upwell.edge.updates.update_follower import UpdateFollower, UpdateStatus
    from upwell.edge.uplink.uplink import Uplink, UplinkSettings
    from upwell.shared.oip.introspection import Seen

_log = logging.getLogger(__name__)


@value_class
class AgentParts:
    """The parts of an agent besides its models, cloud and policy. The agent closes `state_dir` and `tracer`."""

    name: str = "agent"
    state_dir: StateDir | None = None
    """The folder for state that survives a restart; without it nothing is stored."""
    recorder_limit: int = LIMIT
    spool: SpoolLimits | None = None
    """The limits of the spool; None for the usual ones."""
    sinks: Sequence[Sink] = ()
    """The sinks of the cloud's answers to spooled cases."""
    tracer: Tracer | None = None
    policy_file: Path | None = None
    """The policy file; its changes take effect."""
    followers: Sequence[UpdateFollower] = ()
    """The followers that look for new versions of the models."""


class AgentCore(Closing):
    """Serves models in this process. Thread-safe; close it, or use it as a context manager.

    Raises `ConfigError` for a wrong cloud section or policy file.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        cloud: UplinkSettings | None,
        policy: Policy,
        parts: AgentParts = AgentParts(),  # noqa: B008  an immutable value
    ) -> None:
        self.name = parts.name
        self._parts = parts
        self._models = {model.name: model for model in models}
        self.models: Mapping[str, ServedModel] = MappingProxyType(self._models)
        """The models served now. A request keeps the version that it found here."""
        self.release: ReleaseControl | None = None
        """The device's releases if agent.yaml has `release`; set at the start."""
        self._switching = threading.Lock()
        self.router = RouterService(
            policy,
            {model.name: model.model_pair for model in models},
            {one.name: one.edge.source.calibrations for one in models if one.edge and one.edge.source.calibrations},
            () if cloud is None else cloud.interfaces,
        )
        for ran in _warm_up_runs(models):
            self.router.observe(ran)
        self._policy_file = None if parts.policy_file is None else PolicyFile(parts.policy_file, self._take_policy)
        if self._policy_file is not None and self._policy_file.policy != policy:  # changed while the models were loaded
            self._policy_file.problem = self._take_policy(self._policy_file.policy)
        self.uplinks: Mapping[str, Uplink] = {} if cloud is None else _uplinks(cloud, self.router)
        """The ways to the cloud, by network interface, the preferred one first."""
        self.uplink = next(iter(self.uplinks.values()), None)
        self.metrics = AgentMetrics(lambda: self.router.state, self.health, parts.name, self._policy_problem)
        upwell_version()  # so that no request looks it up
        seen: dict[str, Seen] = {}
        self._context = RequestContext(
            self.router, self.uplinks, self.metrics, Admission(), parts.tracer, parts.name, seen=seen
        )
        folder = None if parts.state_dir is None else parts.state_dir.path
        self.flight_recorder = None if folder is None else FlightRecorder(folder / FOLDER_NAME, parts.recorder_limit)
        self.spool: Spool | None = None
        self._shadow: ShadowRelease | None = None
        self._log: RequestLog | None = None
        self.collector: CaseCollector | None = None
        self.drift: DriftWatch | None = None
        self._outcome_recorder: OutcomeRecorder | None = None
        jobs = self._jobs(folder)
        self._cloud_models = None if not self.uplinks else self._ask_cloud(seen)
        self.metrics.export(self._families)
        self._ids = Ids()
        self._health_parts: dict[str, Callable[[], HealthPart]] = {}
        self._on_close = ExitStack()
        _agents.add(self)
        self._ended = ""
        """Why it serves no longer; empty while it does."""
        self._periodic_jobs = PeriodicJobs(*jobs)
        if self._cloud_models is not None:
            self._cloud_models.start()

    def _jobs(self, folder: Path | None) -> list[Callable[[], None]]:
        """What is done again and again, in this order."""
        jobs: list[Callable[[], None]] = [] if self._policy_file is None else [self._policy_file.poll]
        jobs.append(self._follow_runtimes)
        jobs += [uplink.heed_policy for uplink in self.uplinks.values()]  # after the policy, so in the same round
        if folder is not None:
            # Before anything is sent, so that cases found in the spool after a restart are not charged twice.
            jobs.append(BudgetFile(folder / BUDGETS_NAME, self.router).save)
            jobs.append(self._record(folder).save)
        return jobs

    def _ask_cloud(self, seen: dict[str, Seen]) -> CloudModels:
        from upwell.edge.observe.cloud_model_check import CloudModels

        return CloudModels(list(self.uplinks.values()), self.models, self.router, seen)

    def _record(self, folder: Path) -> ShadowRelease:
        """Record requests in the agent's folder: lines, cases for the cloud and for training, drift, the shadow's."""
        from upwell.edge.case_collection.case_collector import CaseCollector
        from upwell.edge.case_collection.case_database import FILE_NAME as CASES_NAME
        from upwell.edge.drift import FILE_NAME as DRIFT_NAME
        from upwell.edge.drift import DriftWatch
        from upwell.edge.observe.outcome_recorder import LOG_NAME, OutcomeRecorder
        from upwell.edge.observe.request_log import RequestLog
        from upwell.edge.observe.shadow_release import ShadowRelease

        shadow = self._shadow = ShadowRelease(self.router, folder)
        self._log = RequestLog(folder / LOG_NAME)
        self.collector = CaseCollector(folder / CASES_NAME, self.name, self.router)
        self.drift = DriftWatch(folder / DRIFT_NAME, self.router.set_drifted)
        if self.uplink is not None:
            self.spool = self._new_spool(folder, self.uplink, self._log, self.collector, self.drift, shadow)
        self._outcome_recorder = OutcomeRecorder(self._log, self.spool, self.router, self.collector, self.drift)
        return shadow

    def _new_spool(
        self,
        folder: Path,
        uplink: Uplink,
        log: RequestLog,
        collector: CaseCollector,
        drift: DriftWatch,
        shadow: ShadowRelease,
    ) -> Spool:
        from upwell.edge.observe.audits import AuditResults
        from upwell.edge.spool.result_sinks import CallbackSink
        from upwell.edge.spool.spool import FILE_NAME, Spool
        from upwell.edge.spool.spool_drainer import CaseSender, SpoolSender
        from upwell.edge.spool.spooled_request import SpoolLimits

        sender = SpoolSender(self.router, uplink, self.models)

        def audited(model: str, agrees: bool) -> None:
            self.metrics.audited(model, agrees=agrees)
            drift.audited(model, not agrees)

        audits = AuditResults(log, self.models, self.router, collector, audited, shadow.audited)
        return Spool(
            folder / FILE_NAME,
            limits=self._parts.spool or SpoolLimits(),
            sender=CaseSender(sender.send, sender.may_send, sender.left_alone, sender.still_allowed),
            sinks=[*self._parts.sinks, CallbackSink(audits.take, "agent")],
        )

    def _families(self) -> Iterator[Metric]:
        """The metrics of the parts that exist."""
        from upwell.edge.observe import metric_families as of

        if self._log is not None:
            yield of.counter_by("upwell_log_lines", "Lines of the request log.", "became", self._log.counts)
        if self.spool is not None:
            yield from of.spool_families(self.spool)
        if self.collector is not None:
            yield from of.case_families(self.collector)
        if self.drift is not None:
            yield from of.drift_families(self.drift)
        if (tracer := self._parts.tracer) is not None:
            became = {**dict.fromkeys(("sent", "dropped", "failed"), 0), **tracer.delivery.became}
            yield of.counter_by("upwell_traces", "Requests recorded for traces.", "became", became)
        yield from of.update_families(self._updates())

    def _take_policy(self, policy: Policy) -> str:
        """Use this policy from now on; returns why not, or ""."""
        from upwell.shared.routing.policy.dropped_denies import dropped_denies  # only when a policy changes

        former = self.router.policy
        dropped = dropped_denies(former, policy)
        if dropped and policy.replaces != former.digest:
            return (
                f"without {', '.join(map(repr, dropped))}, data kept on the device by egress: deny could leave it; "
                f"if that is intended, write `replaces: {former.digest}` into the file"
            )
        try:
            check_policy(policy, self.models.values(), None, has_state_dir=self._parts.state_dir is not None)
        except ConfigError as error:
            return str(error)
        self.router.replace_policy(policy)
        for name in dropped:
            _log.warning("the policy no longer has the egress rule %r, as allowed by its `replaces`", name)
        _log.info("the policy has changed: %s", self.router.digest)
        return ""

    def _policy_problem(self) -> str:
        """Why the policy file is not in force; empty if it is."""
        return "" if self._policy_file is None else self._policy_file.problem

    @property
    def shadow(self) -> ShadowRelease:
        """The shadow release. Only an agent with a folder has one, for releases need that."""
        assert self._shadow is not None  # noqa: S101  as said
        return self._shadow

    def _updates(self) -> Mapping[str, UpdateStatus]:
        return {follower.store.model: follower.status for follower in self._parts.followers}

    def health_document(self) -> dict[str, Any]:
        """The content of `/health`, ready for JSON."""
        state_dir, problem = self._parts.state_dir, self._policy_problem()
        problems = [state_dir.explained] if state_dir is not None and state_dir.problem else []
        problems += [part.problem for part in (self.spool, self.collector) if part is not None and part.problem]
        problems += [f"the policy file is not in force: {problem}"] if problem else []
        parts = {name: part() for name, part in self._health_parts.items()}
        if self.drift is not None and (reports := self.drift.reports()):
            parts["drift"] = drift_part(reports)
        missing = {} if self._cloud_models is None else self._cloud_models.missing
        return document(self.health(), self._updates(), problems, missing, parts)

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
        """Answer one request on the best route: see `upwell.edge.Agent.infer`."""
        arrived_s = time.monotonic()
        is_plain = type(deadline_s) is float and type(id) is type(traceparent) is type(model) is str
        if not (is_plain and id.isascii() and len(id) <= MAX_ID_CHARACTERS):
            check_strings(model=model, id=id, traceparent=traceparent)
            refuse_long_id(id)  # as the cloud would
            deadline_s = checked_deadline(deadline_s)
        served = self._models.get(model) or self.model(model)
        arrays = as_arrays(inputs, served)
        own_tags = as_tags(tags) if tags else NO_TAGS
        request = Request(model, arrays, arrived_s, arrived_s + deadline_s, own_tags, id, traceparent)
        return self._handle(served, request)

    def handle(self, request: Request) -> Answer:
        """Answer one request."""
        return self._handle(self.model(request.model), replace(request, tags=as_tags(request.tags)))

    def _handle(self, served: ServedModel, request: Request) -> Answer:
        if self._ended:
            raise Unavailable(self._ended)
        driver: RequestDriver | None = None
        context = self._context
        if request.traceparent or context.tracer is not None:
            context = context.placed(request.traceparent, request.arrived_s)
        try:
            if not request.arrived_s < request.deadline_s:  # written so that a NaN deadline is refused too
                raise DeadlineExceeded("the deadline had passed when the request arrived")
            driver = RequestDriver(context, served, request, request.id or self._ids.new())
            answer, done = driver.run()
        # An error kept under a name of its own would form a cycle with this frame, which holds the inputs: under
        # overload the garbage collector then makes other requests late. `error` is deleted with the block.
        except UpwellError as error:
            # `is_closed`, since it may have been closed meanwhile: of `_ended` the type checker knows that it was "".
            is_end = self.is_closed and isinstance(error, ModelFailed)
            if is_end:
                error = Unavailable(self._ended)
            self.metrics.failed(served.name, error)
            failed = None if driver is None else driver.record()
            end_request(context, request, failed, error)
            if failed is not None:
                self._note(failed, error, time.monotonic())
            if is_end:
                raise error from None
            raise
        return self._kept(done, answer, context, request)

    def _note(self, done: RequestRecord, ended: Answer | UpwellError, now_s: float) -> None:
        if self.flight_recorder is not None:  # without a folder nobody could read it
            self.flight_recorder.note(trace_of(done, ended, self.router.recent, now_s, self.router.digest))

    def _kept(self, done: RequestRecord, answer: Answer, context: RequestContext, request: Request) -> Answer:
        """The answer, after everything to be stored about the request is queued for the disk."""
        if self._outcome_recorder is not None:
            answer = self._outcome_recorder.keep(done, answer)
        if self._shadow is not None and self._shadow.release:
            self._shadow.offer(done, self.spool)
        model, now_s = done.model.name, time.monotonic()
        self.metrics.answers.add(model, answer.route, answer.reason, answer.timings.total_s)
        if now_s > done.first.deadline_s:
            self.metrics.late(model)
        if self._cloud_models is not None:
            self._cloud_models.learn(done, answer)
        if done.first.verdict.failed_rule:
            self.metrics.rule_failed(done.first.verdict.failed_rule)
        self._note(done, answer, now_s)
        if answer.cloud_digest:
            if not answer.cut:  # a tail is not the cloud model that calibrations refer to
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
        """Serve this edge side from now on; requests in progress finish with the one they started with.

        It must be loaded, tested and warmed up. Nothing is closed: the previous one is freed after its last request.
        With `former`, does nothing and returns False unless that is served now.
        """
        with self._switching:
            if former is not None and self.model(name).edge is not former:
                return False
            self._replace({name: edge}, None)
        return True

    def replace_release(self, edges: Mapping[str, EdgeModel | None], policy: Policy) -> None:
        """Serve these edge sides with this policy from the next request on; for None only the cloud answers."""
        with self._switching:
            self._replace(edges, policy)

    def _replace(self, edges: Mapping[str, EdgeModel | None], policy: Policy | None) -> None:
        """Replace edge sides and policy; call it under the switching lock."""
        changed: dict[str, ServedModel] = {}
        for name, edge in edges.items():
            served = self.model(name)
            if edge is None:
                has_own = served.edge is not None and served.edge.heads is not None
                changed[name] = replace(served, edge=None, heads=() if has_own else served.heads)
                continue
            if served.edge is not None:
                edge.scheduler = served.edge.scheduler
                edge.scheduler.resize(edge.runtime.instances)
            heads = served.heads if edge.heads is None else edge.heads
            for head in heads:
                head.edge.scheduler = edge.scheduler
            changed[name] = replace(served, edge=edge, heads=heads)
        self.router.replace_models(
            [
                ModelChange(name, changed[name].model_pair)
                if edge is None
                else ModelChange(name, changed[name].model_pair, edge.source.calibrations, edge.durations_s)
                for name, edge in edges.items()
            ],
            policy,
        )
        self._models.update(changed)
        if self.drift is not None:
            for name, edge in edges.items():
                if edge is not None:
                    self.drift.serves(name, edge)

    def _follow_runtimes(self) -> None:
        """Tell the router of models that lost their accelerator: another calibration fits, or none, and runs take
        another time."""
        with self._switching:
            moved = [
                ModelChange(one.name, one.model_pair, one.edge.source.calibrations)
                for one in self._models.values()
                if one.edge is not None and one.model_pair.edge_runtime != self.router.edge_runtime(one.name)
            ]
            if moved:
                self.router.replace_models(moved)

    def health(self) -> Sequence[ModelHealth]:
        """The health of each model on the device: where it runs, the evidence, and why it is not where it should be."""
        return health_of(self.models.values(), self.router.misfit)

    def model(self, name: str) -> ServedModel:
        """The model of that name. Raises `ModelNotFound`, which lists the models."""
        try:
            return self.models[name]
        except KeyError:
            raise ModelNotFound.unknown(name, self.models) from None

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, or this process is a fork of the agent's."""
        return bool(self._ended)

    def describe_with(self, name: str, part: Callable[[], HealthPart]) -> None:
        """Add this part to `/health` under `name`."""
        self._health_parts[name] = part

    def close_with(self, part: Callable[[], None]) -> None:
        """Call this first when the agent is closed."""
        self._on_close.callback(part)

    def close(self) -> None:
        """Free models and channels. Requests after it raise `Unavailable`; calling it twice is harmless."""
        if self._ended == _FORKED:
            return
        self._ended = "the agent is closed"
        if self._cloud_models is not None:
            self._cloud_models.stop()
        self._on_close.close()
        if self.spool is not None:
            self.spool.news.close()
        for uplink in self.uplinks.values():
            uplink.close()  # first, since it ends a call of the spool in progress
        # The spool may still spend a budget, which the periodic jobs save.
        for part in (
            self._cloud_models,
            self.spool,
            self.collector,
            self.drift,
            self._log,
            self._shadow,
            self._periodic_jobs,
            self.flight_recorder,
        ):
            if part is not None:
                part.close()
        for model in self.models.values():
            if model.edge is not None:
                model.edge.close()
            for head in model.heads:
                head.edge.close()
        if self._parts.tracer is not None:
            self._parts.tracer.delivery.close()
        if self._parts.state_dir is not None:
            self._parts.state_dir.close()

    def _leave(self) -> None:
        """Serve no longer in this process, a fork of the agent's, without touching what is still the other's."""
        self._ended = _FORKED
        if self._parts.state_dir is not None:
            self._parts.state_dir.close()  # else the folder stayed locked for as long as this process lives


def _uplinks(cloud: UplinkSettings, router: RouterService) -> Mapping[str, Uplink]:
    """An uplink for each network interface; one named "" if the system chooses."""
    from upwell.edge.uplink.uplink import Uplink

    return {
        name: Uplink(cloud, router.observe, partial(router.wants_probe, name), interface=name)
        for name in cloud.interfaces or ("",)
    }


def _warm_up_runs(models: Sequence[ServedModel]) -> Iterator[EdgeRan]:
    """The run times known before the first request, of each model and its heads."""
    for model in models:
        for duration_s in model.edge.durations_s if model.edge else ():
            yield EdgeRan(model.name, 1, duration_s)
        for head in model.heads:
            for duration_s in head.edge.durations_s:
                yield EdgeRan(head.split_route.key, 1, duration_s)


_FORKED = "the agent belongs to the process that made it, not to its forks; make one in each process"
_agents: weakref.WeakSet[AgentCore] = weakref.WeakSet()


def _leave_all() -> None:
    """In a fork neither an agent's threads exist nor the runtimes' own, so a request could wait without end."""
    for agent in list(_agents):
        agent._leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all)

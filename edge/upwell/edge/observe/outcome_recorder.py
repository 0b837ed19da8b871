"""Recording outcomes as they happen: log lines for simulation and calibration, spooled cases and audits."""

from __future__ import annotations

import logging
import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from upwell.edge.case_collection.case_collector import CaseCollector, SentLater
from upwell.edge.drift import DriftWatch
from upwell.edge.models.edge_model import EdgeModel, ServedModel
from upwell.edge.observe.request_log import RequestLog
from upwell.edge.policy.router_service import RouterService
from upwell.edge.request.answer import Answer
from upwell.edge.request.request import RequestRecord
from upwell.edge.runtimes.base import runtime_name
from upwell.edge.spool.spool import Spool
from upwell.edge.spool.spooled_request import Case, Kind, SpoolResult
from upwell.edge.uplink.cloud_call import CloudReply
from upwell.shared.errors import ConfigError, ModelFailed
from upwell.shared.oip.auth.caller import current_caller
from upwell.shared.oip.dataplane import InferResponse, Parameter
from upwell.shared.routing.decide.router_state import Audited
from upwell.shared.routing.log_line import LogLine
from upwell.shared.routing.policy.compiled_policy import Verdict
from upwell.shared.routing.policy.settings import HardSettings, Settings
from upwell.shared.routing.reasons import DEGRADED, Reason
from upwell.shared.signature.answer_rows import Judge
from upwell.shared.tensors import Array

LOG_NAME = "requests.jsonl"
"""The request log's name in the agent's `state_dir`."""

SPOOLED = DEGRADED | {Reason.BUDGET_SPENT, Reason.FLEET_SHARE}
"""Reasons for spooling a row that missed the cloud: a failing cloud or a spent budget, not a rule."""

_SCOPE, LINE_FACT, _TRIAL, SHADOW_FACT = "upwell.scope", "upwell.log", "upwell.trial", "upwell.shadow"
"""Parameters of the device's answer in an audit: the threshold that kept the row, the log line to complete, the name
given by a trial, and the mark of a shadow release."""

_NO_FACTS: Mapping[str, Parameter] = MappingProxyType({})
T = TypeVar("T")
_draw = random.random  # for sampling only, not for secrets
_log = logging.getLogger(__name__)


def log_lines(done: RequestRecord) -> dict[int, LogLine]:
    """A line for each row that the device answered. If the cloud answered too, its answer counts as correct."""
    edge = done.model.edge
    if edge is None:
        return {}
    judge = judge_of(edge, done.settings.hard)
    lines: dict[int, LogLine] = {}
    for rows, run in done.parts.edge:
        outputs, hard = run.outputs, done.settings.hard or HardSettings()
        measures = edge.scorer.score_all(outputs, hard, len(rows), run.candidates)
        for index, row in enumerate(rows):
            scores = edge.scorer.logged(outputs, hard, index, run.candidates)
            line = _edge_line(done, edge, row, measures[index]).model_copy(update={**scores})
            reply = done.replies.get(row)
            if reply is not None and not reply.is_degraded:
                line = with_cloud(line, reply, _row(edge, outputs, index), _cloud_row(done, edge, row), judge)
            lines[row] = line
    return lines


def with_cloud(
    line: LogLine, reply: CloudReply, edge: Mapping[str, Array], cloud: Mapping[str, Array], judge: Judge | None
) -> LogLine:
    """The line completed with the cloud's answer to the same row."""
    agrees = None if judge is None else judge.agrees(edge, cloud)
    return line.model_copy(
        update={
            "cloud_digest": reply.digest,
            "cloud_s": reply.server_s,
            "reply_bytes": reply.received_bytes,
            "edge_correct": agrees,
            "cloud_correct": None if judge is None else True,
        }
    )


def judge_of(edge: EdgeModel, hard: HardSettings | None) -> Judge | None:
    """The judge of agreement between both sides; None for a model whose answers cannot be compared."""
    try:
        return Judge(edge.signature, box_score=(hard or HardSettings()).box_score, with_labels=False)
    except ConfigError:
        return None


def _edge_line(done: RequestRecord, edge: EdgeModel, row: int, measures: Mapping[str, float]) -> LogLine:
    signals = done.signals
    ran_rows = sum(len(rows) for rows, _ in done.parts.edge)
    return LogLine(
        t_s=signals.request_facts.wall_time_s,
        model=done.model.name,
        size_bytes=signals.row_sizes_bytes[row],
        up_bytes=signals.up_sizes_bytes[row] if signals.up_sizes_bytes else None,
        edge_s=None if done.edge_s is None else done.edge_s / ran_rows,
        hardness=measures,
        edge_digest=edge.digest,
        edge_runtime=runtime_name(edge.runtime),
        deadline_s=_positive(done.first.deadline_s - signals.arrived_s),
        tags=dict(signals.request_facts.tags),
    )


def _positive(seconds: float) -> float | None:
    return seconds if 0 < seconds < math.inf else None


def _row(edge: EdgeModel, outputs: Mapping[str, Array], index: int) -> Mapping[str, Array]:
    """The outputs of one row, with its row dimension."""
    if not edge.signature.has_rows:
        return outputs
    return {name: array[index : index + 1] for name, array in outputs.items()}


def _cloud_row(done: RequestRecord, edge: EdgeModel, row: int) -> Mapping[str, Array]:
    attempt = next(a for a in done.attempts if row in a.rows and isinstance(a.outcome, CloudReply))
    assert isinstance(attempt.outcome, CloudReply)  # noqa: S101  chosen so, one line above
    return _row(edge, attempt.outcome.response.outputs, attempt.rows.index(row))


class FailureLog:
    """Logs the first failure of each kind with its traceback, and then only counts: at 10, 100, 1000 … Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str, type[Exception]]] = Counter()

    def note(self, model: str, step: str, error: Exception) -> None:
        """Note that a step of recording a request failed."""
        kind = (model, step, type(error))
        with self._lock:
            self._counts[kind] += 1
            count = self._counts[kind]
        if count == 1:
            _log.error("model %s: %s failed", model, step, exc_info=error)
        elif str(count).rstrip("0") == "1":
            _log.error("model %s: %s has failed %d times: %s: %s", model, step, count, type(error).__name__, error)


@dataclass(frozen=True)
class _Audit:
    """The audited row of a request, and the case to send."""

    row: int
    case: Case


class OutcomeRecorder:
    """Records what the policy asks for: cases in the `spool` (`spool`, `audit`), lines in the `log` (`record`,
    `explore`).

    It also passes rows to the `collector` (`collect`) and to `drift`. Nothing of a request with denied egress is
    spooled, logged, collected or counted. Thread-safe.
    """

    def __init__(
        self, log: RequestLog, spool: Spool | None, router: RouterService, collector: CaseCollector, drift: DriftWatch
    ) -> None:
        self._drift = drift
        self._log = log
        self._spool = spool
        self._router = router
        self._collector = collector
        self._failures = FailureLog()

    def keep(self, done: RequestRecord, answer: Answer) -> Answer:
        """The answer, with the id of the spooled case for its missing rows. A failing step is logged and skipped."""
        try:
            return self._keep(done, answer)
        except Exception as error:  # noqa: BLE001  what is recorded is not worth an answer
            self._failures.note(done.model.name, "recording an answer", error)
            return answer

    def _tried(self, done: RequestRecord, step: str, act: Callable[[], T], otherwise: T) -> T:
        """What the step returns; `otherwise` if it fails, which costs no other step."""
        try:
            return act()
        except Exception as error:  # noqa: BLE001  whatever a disk, a thread or a user's function raises
            self._failures.note(done.model.name, step, error)
            return otherwise

    def _keep(self, done: RequestRecord, answer: Answer) -> Answer:
        if any(one is not None and one.verdict.denial is not None for one in (done.first, done.second)):
            return answer
        settings = done.settings
        explored = settings.explore > 0 and _draw() < settings.explore
        wants_more = self._wants_more(done)
        audits = wants_more or explored or _draw() < settings.audit
        missed = {row: reason for row, reason in done.missed.items() if _is_kept(settings, reason)}
        is_watched = self._drift.sees(done.model.edge)
        if not (settings.record_bytes or audits or missed or settings.collect is not None or is_watched):
            return answer
        verdict = self._router.judge(done.signals)
        if verdict.denial is not None:  # by a policy that took effect during the request
            return answer
        if is_watched:
            self._tried(done, "watching for drift", partial(self._drift.observe, done), None)
        lines: Mapping[int, LogLine] = {}
        if settings.record_bytes:
            lines = self._tried(done, "making log lines", partial(log_lines, done), lines)
        audit = None
        if audits:
            facts = lines if explored else {}
            audit = self._tried(done, "making an audit", partial(self._audit_case, done, facts), None)
        spooled = None
        if missed:
            spooled = self._tried(done, "making a case", partial(self._missed_case, done, answer, missed), None)
        collect = settings.collect
        if collect is not None and not done.first.verdict.collect_rule and not verdict.collect_rule:
            # Before the cases are sent, since their answers may come at once. If one cannot be sent, a collected case
            # stays without the cloud's answer.
            share = 1.0 if wants_more else 1.0 - (1.0 - settings.audit) * (1.0 - settings.explore)
            later = self._sent_later(done, spooled, tuple(sorted(missed)), audit, share)
            self._tried(done, "collecting a case", partial(self._collector.collect, done, answer, collect, later), None)
        if audit is not None:
            self._tried(done, "sending an audit", partial(self._send_audit, done, audit.case, verdict), None)
        if lines:
            with_audit = audit.row if audit is not None and explored else -1
            left = [line for row, line in lines.items() if row != with_audit]
            self._tried(done, "writing log lines", partial(self._append, left, settings.record_bytes), None)
        if spooled is None or self._spool is None:
            return answer
        first = done.first
        until_s = first.deadline_s - (first.deadline_s - first.give_up_s) / 2
        spool_id = self._spool.put(spooled, verdict, until_s)
        return replace(answer, spool_id=spool_id, spool_rows=tuple(sorted(missed))) if spool_id else answer

    def _append(self, lines: Sequence[LogLine], limit_bytes: int) -> None:
        for line in lines:
            self._log.append(line, limit_bytes)

    def _sent_later(
        self, done: RequestRecord, spooled: Case | None, rows: tuple[int, ...], audit: _Audit | None, share: float
    ) -> SentLater:
        can_audit = self._spool is not None and bool(done.model.cloud_model) and done.model.edge is not None
        easy = frozenset(_easy(done)) if can_audit else frozenset()
        return SentLater(
            missed_id=spooled.id if spooled is not None else "",
            missed_rows=rows if spooled is not None else (),
            audit_id=audit.case.id if audit is not None else "",
            audited_row=audit.row if audit is not None else -1,
            easy_rows=easy,
            audit_share=share / len(easy) if easy else 0.0,
        )

    def _missed_case(self, done: RequestRecord, answer: Answer, missed: Mapping[int, Reason]) -> Case | None:
        """The rows that wanted the cloud and missed it; None if they are not spooled."""
        if self._spool is None or not done.model.cloud_model:
            return None
        rows = tuple(sorted(missed))
        outputs = answer.outputs if len(rows) == done.parts.rows else {}
        return case_of(done, "spool", rows, str(missed[rows[0]]), outputs)

    def _wants_more(self, done: RequestRecord) -> bool:
        """Whether a version on trial is audited beyond the policy's share; never if that share is zero."""
        edge, can_audit = done.model.edge, self._spool is not None and bool(done.model.cloud_model)
        if edge is None or edge.versions is None or not can_audit or not done.settings.audit:
            return False
        return bool(_easy(done)) and edge.versions.wants_audit()

    def _audit_case(self, done: RequestRecord, lines: Mapping[int, LogLine]) -> _Audit | None:
        """One row that the device was sure of, with the device's answer, for the cloud to answer as well."""
        easy = _easy(done)
        if self._spool is None or not easy or done.model.edge is None or not done.model.cloud_model:
            return None
        row = easy[int(_draw() * len(easy))]
        hard = done.settings.hard
        facts: dict[str, Parameter] = {_SCOPE: hard.scope if hard else ""}
        if row in lines:
            facts[LINE_FACT] = lines[row].model_dump_json(exclude_defaults=True)
        rows, outputs = next((rows, run.outputs) for rows, run in done.parts.edge if row in rows)
        outputs = _row(done.model.edge, outputs, rows.index(row))
        return _Audit(row, case_of(done, "audit", (row,), str(Reason.EASY), outputs, facts))

    def _send_audit(self, done: RequestRecord, case: Case, verdict: Verdict) -> None:
        """Spool the audit; during a trial, the previous version answers it first."""
        edge = done.model.edge
        is_compared = edge is not None and edge.versions is not None and self._compare(edge, case, verdict)
        if self._spool is not None and not is_compared:
            self._spool.put(case, verdict, 0.0)

    def _compare(self, edge: EdgeModel, case: Case, verdict: Verdict) -> bool:
        """Have the previous version answer an audit before it is spooled; False if there is no comparison."""
        spool, versions, response = self._spool, edge.versions, case.edge
        if spool is None or versions is None or response is None:
            return False
        # The caller may change its arrays once it has its answer.
        inputs = {name: array.copy() for name, array in case.inputs.items()}
        outputs = {name: array.copy() for name, array in response.outputs.items()}

        def put(name: str) -> None:
            facts = {**response.parameters, _TRIAL: name} if name else response.parameters
            said = replace(response, outputs=outputs, parameters=facts)
            spool.put(replace(case, inputs=inputs, edge=said), verdict, 0.0)

        return versions.audit(edge, inputs, put)


class AuditResults:
    """Passes on the cloud's answers to spooled cases: to the `collector`, and for audits to the router, to trials of
    versions and to the `log`. `audited` gets the model of each audit and whether both sides agree; `shadowed` gets the
    audits of a shadow release."""

    def __init__(
        self,
        log: RequestLog,
        models: Mapping[str, ServedModel],
        router: RouterService,
        collector: CaseCollector,
        audited: Callable[[str, bool], None],
        shadowed: Callable[[LogLine], None],
    ) -> None:
        self._log = log
        self._models = models
        self._router = router
        self._collector = collector
        self._audited = audited
        self._shadowed = shadowed

    def take(self, result: SpoolResult) -> None:
        """Process the cloud's answer to a spooled case. Called by the spool at least once for each."""
        self._collector.answered(result)
        served, edge = self._models.get(result.model), result.edge_response()
        if result.kind != "audit" or served is None or served.edge is None or edge is None:
            return
        cloud = result.response()
        try:
            served.edge.check_cloud(cloud.outputs, 1)
        except ModelFailed as error:
            _log.warning("the cloud's answer to audit %s cannot be compared: %s", result.spool_id, error)
            return
        settings = self._router.settings(result.model)
        judge = judge_of(served.edge, settings.hard)
        line = edge.parameters.get(LINE_FACT)
        known = LogLine.model_validate_json(line) if isinstance(line, str) else None
        if known is not None:
            reply = CloudReply.of(cloud, 0, len(result.answer), math.nan)
            known = with_cloud(known, reply, edge.outputs, cloud.outputs, judge)
        if SHADOW_FACT in edge.parameters:
            if known is not None:
                self._shadowed(known)
            return
        if judge is not None:
            agrees = judge.agrees(edge.outputs, cloud.outputs)
            self._audited(result.model, agrees)
            self._router.observe(Audited(result.model, str(edge.parameters.get(_SCOPE, "")), not agrees))
        trial, versions = served.edge.trial, served.edge.versions
        if trial is not None and versions is not None:
            versions.audited(str(edge.parameters.get(_TRIAL, "")), cloud.outputs)
            trial.judge()
        if known is not None and settings.record_bytes:
            self._log.append(known, settings.record_bytes)


def case_of(
    done: RequestRecord,
    kind: Kind,
    rows: tuple[int, ...],
    reason: str,
    outputs: Mapping[str, Array],
    facts: Mapping[str, Parameter] = _NO_FACTS,
) -> Case:
    """A case of some rows of a request, to be sent later, with the device's answer to them."""
    edge = InferResponse(done.model.name, outputs, id=done.id, parameters=facts) if outputs else None
    tags = dict(done.signals.request_facts.tags)
    caller = current_caller()
    owner = "" if caller is None else caller.key
    return Case(
        kind, done.model.name, done.model.cloud_model, done.id, done.message_inputs(rows), reason, tags, edge, owner
    )


def _easy(done: RequestRecord) -> list[int]:
    """The rows that the device was sure of and answered alone."""
    return [row for row in done.hardness if row not in done.missed and row not in done.replies]


def _is_kept(settings: Settings, reason: Reason) -> bool:
    """Whether a row that missed the cloud for this reason is spooled."""
    if settings.spool:
        return reason in SPOOLED
    return reason in DEGRADED and settings.on_failure(reason) == "spool"

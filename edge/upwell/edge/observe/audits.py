"""Audits: which requests that stayed on the device the cloud answers too, and what its answers are compared for."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from upwell.edge.case_collection.case_collector import CaseCollector
from upwell.edge.models.edge_model import EdgeModel, ServedModel
from upwell.edge.observe.request_log import RequestLog, with_cloud
from upwell.edge.policy.router_service import RouterService
from upwell.edge.request.request import RequestRecord
from upwell.edge.spool.spool import Spool
from upwell.edge.spool.spooled_request import Case, Kind, SpoolResult
from upwell.edge.uplink.cloud_reply import CloudReply
from upwell.shared.errors import ModelFailed
from upwell.shared.oip.auth.caller import current_caller
from upwell.shared.oip.dataplane import InferResponse, Parameter
from upwell.shared.routing.decide.router_state import Audited
from upwell.shared.routing.policy.compiled_policy import Verdict
from upwell.shared.routing.reasons import Reason
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.tensors import Array

_SCOPE, LINE_FACT, _TRIAL, SHADOW_FACT = "upwell.scope", "upwell.log", "upwell.trial", "upwell.shadow"
"""Parameters of the device's answer in an audit: the threshold that kept the row, the log line to complete, the name
given by a trial, and the mark of a shadow release."""


_NO_FACTS: Mapping[str, Parameter] = MappingProxyType({})
_draw = random.random  # for sampling only, not for secrets
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AuditedRow:
    """The audited row of a request, and the case to send."""

    row: int
    case: Case


class AuditSampler:
    """Chooses the row to audit and sends it by the `spool`; None means that nothing is audited."""

    def __init__(self, spool: Spool | None) -> None:
        self._spool = spool

    def wants_more(self, done: RequestRecord) -> bool:
        """Whether a version on trial is audited beyond the policy's share; never if that share is zero."""
        edge, can_audit = done.model.edge, self._spool is not None and bool(done.model.cloud_model)
        if edge is None or edge.versions is None or not can_audit or not done.settings.audit:
            return False
        return bool(easy_rows(done)) and edge.versions.wants_audit()

    def case(self, done: RequestRecord, lines: Mapping[int, LogLine]) -> AuditedRow | None:
        """One row that the device was sure of, with the device's answer, for the cloud to answer as well."""
        easy = easy_rows(done)
        if self._spool is None or not easy or done.model.edge is None or not done.model.cloud_model:
            return None
        row = easy[int(_draw() * len(easy))]
        hard = done.settings.hard
        facts: dict[str, Parameter] = {_SCOPE: hard.scope if hard else ""}
        if row in lines:
            facts[LINE_FACT] = lines[row].model_dump_json(exclude_defaults=True)
        rows, outputs = next((rows, run.outputs) for rows, run in done.parts.edge if row in rows)
        outputs = done.model.edge.signature.row(outputs, rows.index(row))
        return AuditedRow(row, case_of(done, "audit", (row,), str(Reason.EASY), outputs, facts))

    def send(self, done: RequestRecord, audit: AuditedRow, verdict: Verdict) -> None:
        """Spool the audit; during a trial, both versions answer what the caller gave first."""
        edge = done.model.edge
        is_compared = edge is not None and self._compare(edge, done.inputs_of((audit.row,)), audit.case, verdict)
        if self._spool is not None and not is_compared:
            self._spool.put(audit.case, verdict, 0.0)

    def _compare(self, edge: EdgeModel, inputs: Mapping[str, Array], case: Case, verdict: Verdict) -> bool:
        """Have both versions answer an audit before it is spooled; False if there is no comparison."""
        spool, versions, response = self._spool, edge.versions, case.edge
        if spool is None or versions is None or response is None:
            return False
        # The caller may change its arrays once it has its answer.
        own, sent, outputs = (
            {name: array.copy() for name, array in arrays.items()} for arrays in (inputs, case.inputs, response.outputs)
        )

        def put(name: str) -> None:
            facts = {**response.parameters, _TRIAL: name} if name else response.parameters
            said = replace(response, outputs=outputs, parameters=facts)
            spool.put(replace(case, inputs=sent, edge=said), verdict, 0.0)

        return versions.audit(edge, own, put)


def is_sampled(share: float) -> bool:
    """Whether a request is in a random sample of this share."""
    return _draw() < share


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
        judge = served.edge.judge(settings.hard)
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


def easy_rows(done: RequestRecord) -> list[int]:
    """The rows that the device was sure of and answered alone."""
    return [row for row in done.hardness if row not in done.missed and row not in done.replies]

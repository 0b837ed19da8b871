"""Recording outcomes as they happen: log lines, spooled cases, audits and collected cases."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from upwell.edge.case_collection.case_collector import CaseCollector, SentLater
from upwell.edge.drift import DriftWatch
from upwell.edge.observe.audits import AuditedRow, AuditSampler, case_of, easy_rows, is_sampled
from upwell.edge.observe.request_log import RequestLog, log_lines
from upwell.edge.policy.router_service import RouterService
from upwell.edge.request.answer import Answer
from upwell.edge.request.request import RequestRecord
from upwell.edge.spool.spool import Spool
from upwell.edge.spool.spooled_request import Case
from upwell.shared.routing.policy.settings import Settings
from upwell.shared.routing.reasons import DEGRADED, Reason
from upwell.shared.routing.request_log_line import LogLine

LOG_NAME = "requests.jsonl"
"""The request log's name in the agent's `state_dir`."""

SPOOLED = DEGRADED | {Reason.BUDGET_SPENT, Reason.FLEET_SHARE}
"""Reasons for spooling a row that missed the cloud: a failing cloud or a spent budget, not a rule."""


T = TypeVar("T")
_log = logging.getLogger(__name__)


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
        self._audits = AuditSampler(spool)
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
        explored = settings.explore > 0 and is_sampled(settings.explore)
        wants_more = self._audits.wants_more(done)
        audits = wants_more or explored or is_sampled(settings.audit)
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
            audit = self._tried(done, "making an audit", partial(self._audits.case, done, facts), None)
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
            self._tried(done, "sending an audit", partial(self._audits.send, done, audit, verdict), None)
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
        self, done: RequestRecord, spooled: Case | None, rows: tuple[int, ...], audit: AuditedRow | None, share: float
    ) -> SentLater:
        can_audit = self._spool is not None and bool(done.model.cloud_model) and done.model.edge is not None
        easy = frozenset(easy_rows(done)) if can_audit else frozenset()
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


def _is_kept(settings: Settings, reason: Reason) -> bool:
    """Whether a row that missed the cloud for this reason is spooled."""
    if settings.spool:
        return reason in SPOOLED
    return reason in DEGRADED and settings.on_failure(reason) == "spool"

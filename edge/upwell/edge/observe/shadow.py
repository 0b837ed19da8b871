"""A release beside the one that is served: its models answer the same requests, and what they say is only recorded."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from upwell.edge.models.edge_model import EdgeModel, EdgeRun
from upwell.edge.observe.outcome_recorder import LINE_FACT, SHADOW_FACT, case_of, judge_of, with_cloud
from upwell.edge.policy.router_service import RouterService
from upwell.edge.request.record import RequestRecord
from upwell.edge.runtimes.base import runtime_name
from upwell.edge.spool.spool import Spool
from upwell.shared.errors import UpwellError
from upwell.shared.oip.dataplane import Parameter
from upwell.shared.routing.log import LogLine
from upwell.shared.routing.policy.rules import Verdict
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.routing.scheduling.run_request import RunRequest
from upwell.shared.tensors import Array

EVERY_S = 0.1
"""Between two requests that the models of a release beside answer: frames that follow each other say the same twice."""
MOST_AUDITS = 2000
"""So many of its answers go up to be compared, where the policy audits at all."""
MOST_LINES = 2000
"""So many lines wait to be told; the oldest go first."""
TOLD_BYTES = 32 << 10
"""So much of them is told with one poll."""

_WAITS_S = 30.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ShadowNews:
    """Lines of the request log that were not told yet, and why the release does not run beside, if it does not."""

    release: int
    lines: tuple[str, ...]
    problem: str = ""


class ReleaseShadow:
    """What runs beside. Safe to use from many threads; no request waits for it, and nothing that it says is answered.

    A row is run when the device is idle, by the policy's word goes up as an audit is, and becomes one line without
    tags or tensors. Of a request that must not leave the device nothing is kept.
    """

    def __init__(self, router: RouterService) -> None:
        self._router = router
        self._lock = threading.Lock()
        self._edges: Mapping[str, EdgeModel] = {}
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._problem = ""
        self._is_busy = False
        self._next_s = -math.inf
        self._audits = 0
        self.release = 0
        """The release that runs beside; 0 for none."""

    def begin(self, release: int, edges: Mapping[str, EdgeModel], problem: str = "") -> None:
        """Run these beside what is served, or say why nothing does."""
        with self._lock:
            self.release, self._edges, self._problem, self._audits = release, edges, problem, 0
            self._lines.clear()

    def end(self) -> None:
        """Run nothing beside any more."""
        self.begin(0, {})

    def news(self) -> ShadowNews | None:
        """What is to be told next; None for nothing."""
        with self._lock:
            lines: list[str] = []
            size_bytes = 0
            for line in self._lines:
                size_bytes += len(line)
                if size_bytes > TOLD_BYTES:
                    break
                lines.append(line)
            is_news = self.release and (lines or self._problem)
            return ShadowNews(self.release, tuple(lines), self._problem) if is_news else None

    def told(self, news: ShadowNews) -> None:
        """That was heard."""
        with self._lock:
            if news.release == self.release:
                self._problem = ""
                for line in news.lines:
                    if self._lines and self._lines[0] == line:
                        self._lines.popleft()

    def offer(self, done: RequestRecord, spool: Spool | None) -> None:
        """A request was answered: have it answered beside, too, if it is time for one more. Returns at once."""
        edge, now_s = self._edges.get(done.model.name), time.monotonic()
        if edge is None or done.model.edge is None:
            return
        if any(one is not None and one.verdict.denial is not None for one in (done.first, done.second)):
            return
        with self._lock:
            if self._is_busy or now_s < self._next_s:
                return
            self._is_busy, self._next_s = True, now_s + EVERY_S
        inputs = {name: array.copy() for name, array in done.inputs_of((0,)).items()}  # the caller may change its own
        threading.Thread(target=self._answer, args=(edge, done, inputs, spool), name="shadow", daemon=True).start()

    def audited(self, line: LogLine) -> None:
        """The cloud has answered a row that was answered beside."""
        with self._lock:
            if any(edge.digest == line.edge_digest for edge in self._edges.values()):
                self._lines.append(_text(line))

    def _answer(self, edge: EdgeModel, done: RequestRecord, inputs: Mapping[str, Array], spool: Spool | None) -> None:
        try:
            verdict = self._router.judge(done.signals)
            run = _run_aside(edge, done, inputs) if verdict.denial is None else None
            if run is not None:
                self._record(edge, done, run, (spool, verdict))
        finally:
            with self._lock:
                self._is_busy = False

    def _record(self, edge: EdgeModel, done: RequestRecord, run: EdgeRun, way_up: tuple[Spool | None, Verdict]) -> None:
        spool, verdict = way_up
        hard = done.settings.hard or HardSettings()
        line = LogLine(
            t_s=done.signals.request_facts.wall_time_s, model=done.model.name,
            size_bytes=done.signals.row_sizes_bytes[0], edge_s=run.duration_s,
            hardness=edge.scorer.score_all(run.outputs, hard, 1, run.candidates)[0], edge_digest=edge.digest,
            edge_runtime=runtime_name(edge.runtime), logits=edge.scorer.logits(run.outputs, 0),
        )  # fmt: skip
        outputs = {name: array[:1] for name, array in run.outputs.items()} if edge.signature.has_rows else run.outputs
        reply = done.replies.get(0)
        if reply is not None and not reply.is_degraded:
            attempt = next(one for one in done.attempts if 0 in one.rows)
            cloud = reply.response.outputs
            row = {name: array[attempt.rows.index(0)][None] for name, array in cloud.items()}
            judge = judge_of(edge, done.settings.hard)
            self.audited(with_cloud(line, reply, outputs, row if edge.signature.has_rows else cloud, judge))
        elif spool is not None and done.settings.audit and done.model.cloud_model and self._audits < MOST_AUDITS:
            self._audits += 1
            facts: dict[str, Parameter] = {LINE_FACT: _text(line), SHADOW_FACT: True}
            spool.put(case_of(done, "audit", (0,), "shadow", outputs, facts), verdict, 0.0)
        else:
            self.audited(line)


def _text(line: LogLine) -> str:
    return line.model_dump_json(exclude_defaults=True)


def _run_aside(edge: EdgeModel, done: RequestRecord, inputs: Mapping[str, Array]) -> EdgeRun | None:
    """What the model answers when nobody else wants the device; None where it does not."""
    served = done.model.edge
    assert served is not None  # noqa: S101  asked before
    try:
        run_s = math.nan if done.edge_s is None else done.edge_s
        request = RunRequest(run_s=run_s, priority="low")
        with served.scheduler.acquire(time.monotonic() + _WAITS_S, request):
            return edge.run_now(inputs)
    except UpwellError as error:
        _log.debug("not answered beside: %s", error)
    except Exception:  # noqa: BLE001  whatever a runtime throws: the request itself was answered
        _log.debug("not answered beside", exc_info=True)
    return None

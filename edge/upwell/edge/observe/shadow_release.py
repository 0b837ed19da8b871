"""The shadow release: its models answer the same requests as the served ones, and the answers are only recorded."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upwell.edge.models.edge_model import EdgeModel, EdgeRun
from upwell.edge.models.hardness_scorer import NO_SCORES
from upwell.edge.observe.audits import LINE_FACT, SHADOW_FACT, case_of
from upwell.edge.observe.outcome_recorder import FailureLog
from upwell.edge.observe.request_log import cloud_row, with_cloud
from upwell.edge.policy.router_service import RouterService
from upwell.edge.request.request import RequestRecord
from upwell.edge.runtimes.base import runtime_name
from upwell.edge.spool.spool import Spool
from upwell.shared.files import StateFile
from upwell.shared.oip.dataplane import Parameter
from upwell.shared.routing.policy.compiled_policy import Verdict
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.tensors import Array

EVERY_S = 0.1
"""Pause between two requests that the shadow models answer, since consecutive frames are much alike."""
MOST_AUDITS = 2000
"""Number of its answers that are audited, if the policy audits at all."""
MOST_LINES = 2000
"""Maximum number of unreported lines; the oldest are dropped first."""
MOST_BYTES = 4 << 20
"""Maximum bytes of unreported lines."""
SAVE_S = 30.0
"""Time between saves; a crash loses the lines since the last one."""
FILE_NAME = "shadow.json"
"""The file of unreported lines, in the agent's `state_dir`."""
TOLD_BYTES = 32 << 10
"""Maximum bytes of lines reported in one poll."""


@dataclass(frozen=True)
class ShadowNews:
    """Unreported lines of the request log, or why the shadow release does not run."""

    release: int
    lines: tuple[str, ...]
    problem: str = ""


class ShadowRelease:
    """Runs the shadow release. Thread-safe; no request waits for it, and no caller gets its answers.

    A row is run when the device is idle, is sent as an audit if the policy says so, and becomes one line without tags
    or tensors. Nothing is recorded of a request with denied egress. With a `folder` unreported lines survive a restart,
    and so do spooled audits.
    """

    def __init__(self, router: RouterService, folder: Path | None = None) -> None:
        self._router = router
        what, loss = "the records of the shadow release", "those from before the restart are lost"
        self._file = None if folder is None else StateFile(folder / FILE_NAME, what, loss, 2 * MOST_BYTES)
        self._lock = threading.Lock()
        self._edges: Mapping[str, EdgeModel] = {}
        self._kept = _Kept() if self._file is None else self._file.read(_Kept.of, _Kept())
        self._is_changed, self._saved_at_s = False, time.monotonic()
        self._problem = ""
        self._is_busy = False
        self._failures = FailureLog()
        self._next_s = -math.inf
        self.release = 0
        """The shadow release; 0 for none."""

    def begin(self, release: int, edges: Mapping[str, EdgeModel], problem: str = "") -> None:
        """Run these models in shadow, or report why none runs."""
        with self._lock:
            if release != self._kept.release:
                self._kept, self._is_changed = _Kept(release), True
            if edges:
                self._kept.digests = frozenset(edge.digest for edge in edges.values())
            self.release, self._edges, self._problem = release, edges, problem

    def end(self) -> None:
        """Stop the shadow release."""
        self.begin(0, {})

    def news(self) -> ShadowNews | None:
        """The next report; None if there is none."""
        with self._lock:
            lines: list[str] = []
            size_bytes = 0
            for line in self._kept.lines:
                size_bytes += len(line)
                if size_bytes > TOLD_BYTES:
                    break
                lines.append(line)
            is_news = self.release and (lines or self._problem)
            return ShadowNews(self.release, tuple(lines), self._problem) if is_news else None

    def told(self, news: ShadowNews) -> None:
        """Mark the report as received."""
        with self._lock:
            if news.release == self.release:
                self._problem = ""
                for line in news.lines:
                    if self._kept.lines and self._kept.lines[0] == line:
                        self._kept.drop()
                self._is_changed, self._saved_at_s = True, -math.inf

    def offer(self, done: RequestRecord, spool: Spool | None) -> None:
        """Have the shadow models answer a finished request as well, if one is due. Returns at once."""
        edge, now_s = self._edges.get(done.model.name), time.monotonic()
        if edge is None or done.model.edge is None:
            return
        if any(one is not None and one.verdict.denial is not None for one in (done.first, done.second)):
            return
        with self._lock:
            if self._is_busy or now_s < self._next_s:
                return
            self._is_busy, self._next_s = True, now_s + EVERY_S
        try:
            inputs = {name: array.copy() for name, array in done.inputs_of((0,)).items()}  # the caller may change them
            work = (edge, done, inputs, spool)
            threading.Thread(target=self._answer, args=work, name="shadow", daemon=True).start()
        except Exception as error:  # noqa: BLE001  no memory or no thread left: the request itself was answered
            self._is_busy = False
            self._failures.note(done.model.name, "running the shadow release", error)

    def audited(self, line: LogLine) -> None:
        """Complete the line of a row that the cloud has now answered."""
        with self._lock:
            if line.edge_digest in self._kept.digests:
                self._kept.add(_text(line))
                self._is_changed = True

    def save(self) -> None:
        """Save unreported lines from time to time. A failing disk is logged once."""
        with self._lock:
            if self._file is None or not self._is_changed or time.monotonic() - self._saved_at_s < SAVE_S:
                return
            self._is_changed, self._saved_at_s = False, time.monotonic()
            document = self._kept.document() if self._kept.release else None
        self._file.write(document)

    def close(self) -> None:
        """Save the unreported lines."""
        self._saved_at_s = -math.inf
        self.save()

    def _answer(self, edge: EdgeModel, done: RequestRecord, inputs: Mapping[str, Array], spool: Spool | None) -> None:
        try:
            verdict = self._router.judge(done.signals)
            served, run_s = done.model.edge, math.nan if done.edge_s is None else done.edge_s
            assert served is not None  # noqa: S101  as `offer` asked
            run = served.run_aside(edge, inputs, run_s) if verdict.denial is None else None
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
            edge_runtime=runtime_name(edge.runtime), **edge.scorer.logged(run.outputs, hard, 0, run.candidates),
        )  # fmt: skip
        outputs = edge.signature.row(run.outputs, 0)
        reply = done.replies.get(0)
        if reply is not None and not reply.is_degraded:
            judge = edge.judge(done.settings.hard)
            self.audited(with_cloud(line, reply, outputs, cloud_row(done, edge, 0), judge))
        elif spool is not None and done.settings.audit and done.model.cloud_model and self._kept.audits < MOST_AUDITS:
            self._kept.audits += 1
            facts: dict[str, Parameter] = {LINE_FACT: _text(line), SHADOW_FACT: True}
            spool.put(case_of(done, "audit", (0,), "shadow", outputs, facts), verdict, 0.0)
        else:
            self.audited(line)


class _Kept:
    """The unreported lines of one release, within `MOST_LINES` and `MOST_BYTES`, and its number of audits."""

    def __init__(self, release: int = 0, digests: frozenset[str] = frozenset(), audits: int = 0) -> None:
        self.release, self.digests, self.audits = release, digests, audits
        self.lines: deque[str] = deque()
        self._size_bytes = 0

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> _Kept:
        """Read it from a file's content. Raises `ValueError`, `KeyError` and `TypeError` if that is malformed."""
        kept = cls(int(found["release"]), frozenset(map(str, found["digests"])), int(found["audits"]))
        for line in found["lines"]:
            kept.add(_text(LogLine.model_validate_json(line)))
        return kept

    def document(self) -> dict[str, Any]:
        """The content for JSON."""
        lines = [*self.lines]
        return {"release": self.release, "digests": sorted(self.digests), "audits": self.audits, "lines": lines}

    def add(self, line: str) -> None:
        """Add a line, dropping the oldest if there is no room."""
        self.lines.append(line)
        self._size_bytes += len(line)
        while len(self.lines) > MOST_LINES or self._size_bytes > MOST_BYTES:
            self.drop()

    def drop(self) -> None:
        """Drop the oldest line."""
        self._size_bytes -= len(self.lines.popleft())


def _text(line: LogLine) -> str:
    """The line as text, without scores if it would be too long."""
    text = line.model_dump_json(exclude_defaults=True)
    return (
        text
        if len(text) <= TOLD_BYTES
        else line.model_copy(update={**NO_SCORES}).model_dump_json(exclude_defaults=True)
    )

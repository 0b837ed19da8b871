"""A release beside the one that is served: its models answer the same requests, and what they say is only recorded."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upwell.edge.models.edge_model import EdgeModel, EdgeRun
from upwell.edge.observe.outcome_recorder import LINE_FACT, SHADOW_FACT, case_of, judge_of, with_cloud
from upwell.edge.policy.router_service import RouterService
from upwell.edge.request.record import RequestRecord
from upwell.edge.runtimes.base import runtime_name
from upwell.edge.spool.spool import Spool
from upwell.shared.errors import UpwellError
from upwell.shared.files import read_json, write_whole
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
MOST_BYTES = 4 << 20
"""So many bytes of them."""
SAVE_S = 30.0
"""A crash forgets what came since the last time they were saved; one that was told is no more than a second older."""
FILE_NAME = "shadow.json"
"""Lines that were not told yet, in the agent's `state_dir`."""
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
    tags or tensors. Of a request that must not leave the device nothing is kept. With a `folder` what was not told yet
    outlives a restart, and so do the audits that the spool holds.
    """

    def __init__(self, router: RouterService, folder: Path | None = None) -> None:
        self._router = router
        self._path = None if folder is None else folder / FILE_NAME
        self._lock = threading.Lock()
        self._edges: Mapping[str, EdgeModel] = {}
        self._kept = self._load()
        self._is_changed, self._saved_at_s, self._has_failed = False, time.monotonic(), False
        self._problem = ""
        self._is_busy = False
        self._next_s = -math.inf
        self.release = 0
        """The release that runs beside; 0 for none."""

    def begin(self, release: int, edges: Mapping[str, EdgeModel], problem: str = "") -> None:
        """Run these beside what is served, or say why nothing does."""
        with self._lock:
            if release != self._kept.release:
                self._kept, self._is_changed = _Kept(release), True
            if edges:
                self._kept.digests = frozenset(edge.digest for edge in edges.values())
            self.release, self._edges, self._problem = release, edges, problem

    def end(self) -> None:
        """Run nothing beside any more."""
        self.begin(0, {})

    def news(self) -> ShadowNews | None:
        """What is to be told next; None for nothing."""
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
        """That was heard."""
        with self._lock:
            if news.release == self.release:
                self._problem = ""
                for line in news.lines:
                    if self._kept.lines and self._kept.lines[0] == line:
                        self._kept.drop()
                self._is_changed, self._saved_at_s = True, -math.inf

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
            if line.edge_digest in self._kept.digests:
                self._kept.add(_text(line))
                self._is_changed = True

    def save(self) -> None:
        """Write what was not told yet, now and then. A disk that does not take it is named once in the log."""
        with self._lock:
            if self._path is None or not self._is_changed or time.monotonic() - self._saved_at_s < SAVE_S:
                return
            self._is_changed, self._saved_at_s = False, time.monotonic()
            text = json.dumps(self._kept.document()) if self._kept.release else ""
        try:
            if text:
                write_whole(self._path, text.encode(), 0o600)
            else:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            if not self._has_failed:
                _log.warning("%s: what is said beside would not outlive a restart: %s", self._path, error.strerror)
            self._has_failed = True

    def close(self) -> None:
        """Save what there is."""
        self._saved_at_s = -math.inf
        self.save()

    def _load(self) -> _Kept:
        try:
            return _Kept() if self._path is None else _Kept.of(read_json(self._path, 2 * MOST_BYTES))
        except FileNotFoundError:
            return _Kept()
        except (OSError, ValueError, KeyError, TypeError):
            _log.warning("%s cannot be read: what was said beside before the restart is lost", self._path)
            return _Kept()

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
        elif spool is not None and done.settings.audit and done.model.cloud_model and self._kept.audits < MOST_AUDITS:
            self._kept.audits += 1
            facts: dict[str, Parameter] = {LINE_FACT: _text(line), SHADOW_FACT: True}
            spool.put(case_of(done, "audit", (0,), "shadow", outputs, facts), verdict, 0.0)
        else:
            self.audited(line)


class _Kept:
    """Of one release: lines that were not told, within `MOST_LINES` and `MOST_BYTES`, and how many audits went up."""

    def __init__(self, release: int = 0, digests: frozenset[str] = frozenset(), audits: int = 0) -> None:
        self.release, self.digests, self.audits = release, digests, audits
        self.lines: deque[str] = deque()
        self._size_bytes = 0

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> _Kept:
        """What a file holds. Raises `ValueError`, `KeyError` and `TypeError` for one that does not hold that."""
        kept = cls(int(found["release"]), frozenset(map(str, found["digests"])), int(found["audits"]))
        for line in found["lines"]:
            kept.add(_text(LogLine.model_validate_json(line)))
        return kept

    def document(self) -> dict[str, Any]:
        """It as JSON can hold it."""
        lines = [*self.lines]
        return {"release": self.release, "digests": sorted(self.digests), "audits": self.audits, "lines": lines}

    def add(self, line: str) -> None:
        """Keep a line; the oldest make room."""
        self.lines.append(line)
        self._size_bytes += len(line)
        while len(self.lines) > MOST_LINES or self._size_bytes > MOST_BYTES:
            self.drop()

    def drop(self) -> None:
        """Forget the oldest line."""
        self._size_bytes -= len(self.lines.popleft())


def _text(line: LogLine) -> str:
    """The line; without logits where it could not be told with them."""
    text = line.model_dump_json(exclude_defaults=True)
    return (
        text
        if len(text) <= TOLD_BYTES
        else line.model_copy(update={"logits": None}).model_dump_json(exclude_defaults=True)
    )


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

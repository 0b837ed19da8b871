"""The request log: a line for each row that the device answered, with what the cloud said of it; and its file on the
device, written in the background and limited in size.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from upwell.edge.models.edge_model import EdgeModel, EdgeRun
from upwell.edge.request.request import RequestRecord
from upwell.edge.runtimes.base import runtime_name
from upwell.edge.uplink.cloud_reply import CloudReply
from upwell.shared.files import append_line, open_log
from upwell.shared.platform.background_thread import BackgroundThread
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.routing.request_log_line import LONGEST_LINE_BYTES, LogLine
from upwell.shared.signature.answer_agreement import Judge
from upwell.shared.tensors import Array

QUEUE_LINES = 512
"""Maximum number of lines waiting to be written; more are dropped."""
_CLOSE_S = 5.0

_log = logging.getLogger(__name__)


def log_lines(done: RequestRecord) -> dict[int, LogLine]:
    """A line for each row that the device answered. If the cloud answered too, its answer counts as correct."""
    edge = done.model.edge
    if edge is None:
        return {}
    judge = edge.judge(done.settings.hard)
    lines: dict[int, LogLine] = {}
    for rows, run in done.parts.edge:
        outputs, hard = run.outputs, done.settings.hard or HardSettings()
        measures = edge.scorer.score_all(outputs, hard, len(rows), run.candidates)
        for index, row in enumerate(rows):
            scores = edge.scorer.logged(outputs, hard, index, run.candidates)
            line = _edge_line(done, edge, run, row, measures[index]).model_copy(update={**scores})
            reply = done.replies.get(row)
            if reply is not None and not reply.is_degraded:
                line = with_cloud(line, reply, edge.signature.row(outputs, index), cloud_row(done, edge, row), judge)
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


def _edge_line(done: RequestRecord, edge: EdgeModel, run: EdgeRun, row: int, measures: Mapping[str, float]) -> LogLine:
    signals = done.signals
    ran_rows = sum(len(rows) for rows, _ in done.parts.edge)
    return LogLine(
        t_s=signals.request_facts.wall_time_s,
        model=done.model.name,
        size_bytes=signals.row_sizes_bytes[row],
        up_bytes=signals.up_sizes_bytes[row] if signals.up_sizes_bytes else None,
        edge_s=None if done.edge_s is None else done.edge_s / ran_rows,
        hardness=measures,
        edge_digest=run.digest or edge.digest,
        edge_runtime=runtime_name(edge.runtime),
        deadline_s=_positive(done.first.deadline_s - signals.arrived_s),
        tags=dict(signals.request_facts.tags),
    )


def _positive(seconds: float) -> float | None:
    return seconds if 0 < seconds < math.inf else None


def cloud_row(done: RequestRecord, edge: EdgeModel, row: int) -> Mapping[str, Array]:
    """The cloud's outputs of a row that it has answered."""
    attempt = next(a for a in done.attempts if row in a.rows and isinstance(a.outcome, CloudReply))
    assert isinstance(attempt.outcome, CloudReply)  # noqa: S101  chosen so, one line above
    return edge.signature.row(attempt.outcome.response.outputs, attempt.rows.index(row))


class RequestLog:
    """Appends log lines to a JSONL file from its own thread. Thread-safe.

    The file and its one predecessor, `<name>.1`, together never exceed the latest limit; both have mode 0600. Lines
    that the disk does not take (full, read-only, gone) are counted and dropped; callers never wait.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._half_bytes = 0
        self._waiting: deque[LogLine] = deque()
        self._news = threading.Condition()
        self._closed = False
        self._fails = False
        self.written = 0
        """Lines written to the file."""
        self.dropped = 0
        """Lines dropped because the queue was full or the log closed."""
        self.failed = 0
        """Lines lost because writing failed or they were too long."""
        self._thread = BackgroundThread("request-log", self._write_all, lambda: self._closed)
        self._thread.start()

    @property
    def counts(self) -> Mapping[str, int]:
        """The three counters by name."""
        return {"written": self.written, "dropped": self.dropped, "failed": self.failed}

    def append(self, line: LogLine, limit_bytes: int) -> None:
        """Queue a line for files of at most `limit_bytes` in total; returns at once."""
        with self._news:
            if self._closed or len(self._waiting) >= QUEUE_LINES:
                self.dropped += 1
                return
            self._waiting.append(line)
            self._half_bytes = limit_bytes // 2
            self._news.notify()

    def close(self) -> None:
        """Write the waiting lines, for at most five seconds. Calling it twice is harmless."""
        with self._news:
            self._closed = True
            self._news.notify()
        self._thread.join(_CLOSE_S)

    def _write_all(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._closed)
                lines, half_bytes = list(self._waiting), self._half_bytes
                self._waiting.clear()
            if not lines:
                return
            self._write(lines, half_bytes)

    def _write(self, lines: list[LogLine], half_bytes: int) -> None:
        _remove_larger(Path(f"{self._path}.1"), half_bytes)  # the limit may have been lowered meanwhile
        texts = [encode_line(line) for line in lines]
        fitting = [text for text in texts if len(text) <= half_bytes]
        self.failed += len(texts) - len(fitting)
        done = 0
        try:
            with ExitStack() as stack:
                file = stack.enter_context(open_log(self._path))
                for text in fitting:
                    if os.fstat(file).st_size + len(text) > half_bytes:
                        stack.close()
                        _remove_larger(self._path, half_bytes)
                        with suppress(FileNotFoundError):
                            self._path.replace(f"{self._path}.1")
                        file = stack.enter_context(open_log(self._path))
                    append_line(file, text)
                    done += 1
        except OSError as error:
            if not self._fails:
                _log.warning("%s: the request log cannot be written: %s", self._path, error.strerror or error)
            self._fails = True
        self.written += done
        self.failed += len(fitting) - done
        if 0 < done == len(fitting):
            self._fails = False


def encode_line(line: LogLine) -> bytes:
    """The line as JSON with a newline; defaults are left out, and the scores of so many classes that no reader takes
    them."""
    text = line.model_dump_json(exclude_defaults=True).encode() + b"\n"
    if len(text) > LONGEST_LINE_BYTES and line.logits is not None:
        return encode_line(line.model_copy(update={"logits": None}))
    return text


def _remove_larger(path: Path, limit_bytes: int) -> None:
    with suppress(OSError):
        if path.stat().st_size > limit_bytes:
            path.unlink()

"""The lines of the request log, one for each row that the device answered, with what the cloud said of it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from upwell.edge.models.edge_model import EdgeModel, EdgeRun
from upwell.edge.request.request import RequestRecord
from upwell.edge.runtimes.base import runtime_name
from upwell.edge.uplink.cloud_reply import CloudReply
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.signature.answer_agreement import Judge
from upwell.shared.tensors import Array


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

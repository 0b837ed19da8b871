"""Log lines of requests as they happen, for simulation and calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping

from upwell.edge.collect.truth import Judge
from upwell.edge.handled import Handled
from upwell.edge.models.served import EdgeModel
from upwell.edge.request_log import runtime_name
from upwell.edge.uplink.uplink import CloudReply
from upwell.shared.errors import ConfigError
from upwell.shared.routing.log import LogLine
from upwell.shared.routing.settings import HardSettings
from upwell.shared.tensors import Array


def log_lines(done: Handled, judge: Judge | None) -> dict[int, LogLine]:
    """A line for each row that the device answered. Where the cloud answered too, its answer is taken as right."""
    edge = done.model.edge
    if edge is None:
        return {}
    lines: dict[int, LogLine] = {}
    for rows, outputs in done.parts.edge:
        measures = edge.scorer.score_all(outputs, done.settings.hard or HardSettings(), len(rows))
        for index, row in enumerate(rows):
            line = _edge_line(done, edge, row, measures[index], edge.scorer.logits(outputs, index))
            reply = done.replies.get(row)
            if reply is not None and not reply.is_degraded:
                line = with_cloud(line, reply, _row(edge, outputs, index), _cloud_row(done, edge, row), judge)
            lines[row] = line
    return lines


def with_cloud(
    line: LogLine, reply: CloudReply, edge: Mapping[str, Array], cloud: Mapping[str, Array], judge: Judge | None
) -> LogLine:
    """The line with what the cloud said of the same row."""
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
    """Who says whether the two sides agree; None for a model whose answers nobody can compare."""
    try:
        return Judge(edge.signature, box_score=(hard or HardSettings()).box_score, with_labels=False)
    except ConfigError:
        return None


def _edge_line(
    done: Handled, edge: EdgeModel, row: int, measures: Mapping[str, float], logits: tuple[float, ...] | None
) -> LogLine:
    signals = done.signals
    ran_rows = sum(len(rows) for rows, _ in done.parts.edge)
    return LogLine(
        t_s=signals.subject.wall_time_s,
        model=done.model.name,
        size_bytes=signals.row_sizes_bytes[row],
        edge_s=None if done.edge_s is None else done.edge_s / ran_rows,
        hardness=measures,
        edge_digest=edge.digest,
        edge_runtime=runtime_name(edge.runtime),
        logits=logits,
        deadline_s=_positive(done.first.deadline_s - signals.arrived_s),
        tags=dict(signals.subject.tags),
    )


def _positive(seconds: float) -> float | None:
    return seconds if 0 < seconds < math.inf else None


def _row(edge: EdgeModel, outputs: Mapping[str, Array], index: int) -> Mapping[str, Array]:
    """The outputs of one row, with its row dimension."""
    if not edge.signature.has_rows:
        return outputs
    return {name: array[index : index + 1] for name, array in outputs.items()}


def _cloud_row(done: Handled, edge: EdgeModel, row: int) -> Mapping[str, Array]:
    ascent = next(a for a in done.ascents if row in a.rows and isinstance(a.outcome, CloudReply))
    assert isinstance(ascent.outcome, CloudReply)  # noqa: S101  chosen so, one line above
    return _row(edge, ascent.outcome.response.outputs, ascent.rows.index(row))

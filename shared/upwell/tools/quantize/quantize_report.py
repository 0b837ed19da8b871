"""The effects of quantizing a model, as JSON and as text."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from upwell.shared.units import count_of
from upwell.tools.quantize.quantization_error import SCORE_ERROR, OutputComparison
from upwell.tools.quantize.quantizer import Layer
from upwell.tools.terminal import finite, plain

_WORST = 5


@dataclass(frozen=True)
class Suggestion:
    """More nodes kept float, tried on the same rows: accuracy after (None without labels), and largest error.

    `scores_within` is that of `DetectionChange`, None for other models.
    """

    nodes: Sequence[str]
    accuracy: float | None
    worst_error: float
    scores_within: float | None = None


@dataclass(frozen=True)
class DataUsed:
    """Which rows of which data were used for what. `described_by` is the `model.yaml` with their signature, or
    empty; `chosen_on` counts those that a detector's float layers were chosen on.
    """

    path: str
    described_by: str
    rows: int
    calibrated_on: int
    chosen_on: int
    measured_on: int
    held_out: bool


@dataclass(frozen=True)
class Times:
    """Median milliseconds of one run, both models alternating, on this machine and one thread: a hint, not a claim."""

    before: float
    after: float

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after / self.before if self.before else math.nan


@dataclass(frozen=True)
class QuantizeReport:
    """All findings. `layers` are in the order of the graph; `warnings` are sentences. `int8_work` is the share of the
    multiply-adds that int8 layers do, NaN if no shape is known.
    """

    model: str
    out: str
    scheme: str
    target: str
    method: str
    data: DataUsed
    size_before: int
    size_after: int
    comparison: OutputComparison
    layers: Sequence[Layer]
    int8_work: float
    kept_float: Sequence[str]
    times: Times | None
    warnings: Sequence[str]
    advice: Sequence[Suggestion] = ()

    @property
    def worst_first(self) -> list[Layer]:
        """The layers by what each adds to the error, largest first; unknown ones last."""
        return sorted(self.layers, key=lambda layer: -1.0 if math.isnan(layer.added) else layer.added, reverse=True)

    def document(self) -> dict[str, Any]:
        """The report as JSON; numbers that are not finite are null."""
        accuracy, accuracy_of_boxes = self.comparison.accuracy, self.comparison.detections
        return {
            "model": self.model,
            "out": self.out,
            "scheme": self.scheme,
            "target": self.target,
            "method": self.method,
            "data": asdict(self.data),
            "size_bytes": {"before": self.size_before, "after": self.size_after},
            "accuracy": None if accuracy is None else asdict(accuracy),
            "outputs": [
                {**asdict(one), "relative_error": finite(one.relative_error)} for one in self.comparison.outputs
            ],
            "detections": accuracy_of_boxes and asdict(accuracy_of_boxes),
            "layers": [
                {
                    "node": one.node,
                    "operator": one.operator,
                    "precision": one.precision,
                    "error": finite(one.error),
                    "added": finite(one.added),
                    "sqnr_db": finite(one.sqnr_db),
                }
                for one in self.worst_first
            ],
            "int8_work": finite(self.int8_work),
            "kept_float": list(self.kept_float),
            "time_here_ms": self.times and {**asdict(self.times), "ratio": finite(self.times.ratio)},
            "warnings": list(self.warnings),
            "advice": [{**asdict(one), "worst_error": finite(one.worst_error)} for one in self.advice],
        }


def show(report: QuantizeReport, console: Console) -> None:
    """Print what matters: size, accuracy or agreement, the worst layers, warnings."""
    console.print(plain(f"{report.model}: {report.scheme}, {report.method} ranges, for {report.target}"))
    console.print(plain(_data_line(report.data)))
    console.print(_before_and_after(report))
    console.print(_worst_layers(report))
    kept = [layer.node for layer in report.layers if layer.node in set(report.kept_float)]
    if kept:
        why = " (a detector's end, and layers that would move its scores too far)" if report.data.chosen_on else ""
        console.print(plain(f"kept float{why}: {', '.join(kept)}"))
    for warning in report.warnings:
        console.print(plain(f"warning: {warning}"))
    if report.advice:
        console.print(_advice(report.advice))
    console.print(plain(f"written to {report.out}"))


def _data_line(data: DataUsed) -> str:
    level = f", as callers send it ({data.described_by})" if data.described_by else ""
    how = "others" if data.held_out else "the same, too few to hold any out"
    chosen = f"float layers chosen on {data.chosen_on}, " if data.chosen_on else ""
    rows = f"calibrated on {data.calibrated_on}, {chosen}measured on {data.measured_on} {how}"
    return f"{data.path}: {count_of(data.rows, 'row')}{level}; {rows}"


def _before_and_after(report: QuantizeReport) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False)
    for name in ("", "before", "after", ""):
        table.add_column(name, justify="right" if name else "left", overflow="fold")
    ratio = report.size_after / report.size_before
    table.add_row("size, bytes", f"{report.size_before:,}", f"{report.size_after:,}", f"{ratio:.2f} times")
    if not math.isnan(report.int8_work):
        table.add_row("multiply-adds", "", "", f"{report.int8_work:.0%} in int8")
    accuracy = report.comparison.accuracy
    if accuracy is not None:
        change = f"{(accuracy.after - accuracy.before) * 100:+.2f} points of {accuracy.count} labels"
        table.add_row("accuracy", f"{accuracy.before:.4f}", f"{accuracy.after:.4f}", change)
    for one in report.comparison.outputs:
        error = "" if one.relative_error is None else f"relative error {_number(one.relative_error)}"
        same = "" if one.agreement is None else f"same answer in {one.agreement:.2%}"
        table.add_row(plain(f"output {one.name}"), "", "", "; ".join(part for part in (error, same) if part))
    boxes = report.comparison.detections
    if boxes is not None:
        errors = f"{boxes.scores_within:.2%} of scores within {SCORE_ERROR}, 99 % within {boxes.score_error_p99:.4f}"
        table.add_row("boxes", f"{boxes.boxes}", "", f"{boxes.matched:.2%} have a partner; {errors}")
    times = report.times
    if times is not None:
        ratio_here = f"{times.ratio:.2f} times, median of one thread here"
        table.add_row("one run, ms", f"{times.before:.3f}", f"{times.after:.3f}", ratio_here)
    return table


def _worst_layers(report: QuantizeReport) -> Table:
    table = Table(title="layers by the error they add, worst first", title_justify="left", box=None, pad_edge=False)
    for name in ("node", "operator"):
        table.add_column(name, overflow="fold")
    table.add_column("precision", no_wrap=True)
    for name in ("added", "error so far", "SQNR, dB"):
        table.add_column(name, justify="right", no_wrap=True)
    worst = report.worst_first
    for one in worst[:_WORST]:
        numbers = _number(one.added), _number(one.error), _number(one.sqnr_db, 1)
        table.add_row(plain(one.node), plain(one.operator), one.precision, *numbers)
    if len(worst) > _WORST:
        table.caption = f"and {len(worst) - _WORST} more with --json"
        table.caption_justify = "left"
    return table


def _advice(advice: Sequence[Suggestion]) -> Table:
    table = Table(title="tried on the same rows", title_justify="left", box=None, pad_edge=False)
    table.add_column("with", overflow="fold")
    has_boxes = any(one.scores_within is not None for one in advice)
    for name in (f"scores within {SCORE_ERROR}" if has_boxes else "accuracy", "relative error"):
        table.add_column(name, justify="right")
    for one in advice:
        accuracy = "" if one.accuracy is None else f"{one.accuracy:.4f}"
        if one.scores_within is not None:
            accuracy = f"{one.scores_within:.2%}"
        table.add_row(
            plain(" ".join(f"--keep-float {shlex.quote(node)}" for node in one.nodes)),
            accuracy,
            _number(one.worst_error),
        )
    return table


def _number(value: float, digits: int = 4) -> str:
    return "unknown" if math.isnan(value) else f"{value:.{digits}f}"

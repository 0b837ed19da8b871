"""Quantizes one model: calibrates, quantizes, and measures on rows that calibration has not seen."""

from __future__ import annotations

import math
import shutil
import statistics
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from upwell.edge.runtimes.input_check import check_file
from upwell.edge.runtimes.onnx.int8_saturation import saturation
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.runtimes.runtime_options import RuntimeOptions
from upwell.shared.errors import ConfigError, ExtraMissing, UpwellError
from upwell.shared.formats.onnx.file import BadOnnxFile, external_weights
from upwell.shared.tensors import Array
from upwell.shared.units import count_of
from upwell.tools.model_init.model_yaml_draft import likely_boxes
from upwell.tools.quantize.data_files import FEWEST_TO_HOLD_OUT, SampleRow, Samples, read_samples
from upwell.tools.quantize.quantization_error import (
    SCORE_ERROR,
    DetectionChange,
    OutputComparison,
    box_count,
    compared,
    detection_change,
    found_boxes,
)
from upwell.tools.quantize.quantize_report import DataUsed, QuantizeReport, Suggestion, Times
from upwell.tools.quantize.quantizer import (
    Arithmetic,
    FloatModel,
    Format,
    Layer,
    LayerNode,
    Quantizer,
    QuantizeSettings,
    Run,
    Track,
    check_kept,
    detector_parts,
)

MAX_BYTES = (1 << 31) - (1 << 24)
"""Neither a protobuf message nor a flatbuffer can exceed 2 GiB; some is reserved for what quantizing adds."""

_ROOM = 3
"""Space for temporary files, in sizes of the model: two float copies, one with more outputs, and the int8 model."""

_LAYER_ROWS = 64
"""Maximum number of rows to compare layers on: all their values are read, which is slow for large models."""

_TRIED = 4
_TRIED_ROWS = 1024
"""How many of the worst layers are tried as float if too much is lost, and on how many rows at most."""

_TIMED_RUNS = 21

_WITHOUT_VNNI = ("avx2",)
"""The flags of a CPU that adds products in 16 bits."""

_OVERFLOWS = 1.5
"""Minimum ratio of the error of a CPU's kernels to that of exact sums that rounding alone cannot explain."""

_ACCURACY_FALL = 0.01
_LEAST_AGREEMENT = 0.98
_MOST_ERROR = 0.15
_LEAST_MATCHED, _LEAST_WITHIN = 0.98, 0.99
"""A loss beyond one of these limits brings a warning, and advice."""

_SURE_SCORE_ERROR = 0.01
"""As many layers of a detector stay float as bring 99 % of its scores this close. On the few rows they are chosen on;
with `SCORE_ERROR` itself, other rows would miss it.
"""

_RANKED_ROWS = 32
"""Maximum number of rows that tell the order in which layers become int8. How many do is tried on all rows."""

_FEWEST_BOXES = 100
"""With fewer boxes, one of them decides what 99 % of the scores move by."""

_MOST_SIZE, _MOST_FLOAT = 0.95, 0.9
_LEAST_BYTES = 1 << 16
"""Beyond either share, of the float file's bytes or of the weights that stay float, a warning says that int8 gains
little. A file of fewer bytes is mostly the names of its nodes.
"""


@dataclass(frozen=True)
class Quantized:
    """The int8 model as the bytes of its file, and the report on it."""

    model: bytes
    report: QuantizeReport


def check_model(path: Path) -> None:
    """Raise `ConfigError` if the file's name is not of a format that can be quantized."""
    check_file(path)
    if path.suffix.lower() not in (".onnx", ".tflite"):
        raise ConfigError.at(path, "expected a .onnx or .tflite file")


def open_float_model(path: Path) -> FloatModel:
    """The model at `path`, in the runtime of its suffix. Raises `ConfigError`."""
    check_model(path)
    size_bytes = _size_bytes(path)
    if size_bytes > MAX_BYTES:
        raise ConfigError.at(
            path, f"it has {size_bytes >> 20} MiB; models of more than {MAX_BYTES >> 20} MiB cannot be quantized"
        )
    folder = tempfile.gettempdir()
    if shutil.disk_usage(folder).free < _ROOM * size_bytes:
        raise ConfigError.at(
            Path(folder),
            f"no room for {_ROOM * size_bytes >> 20} MiB of temporary files; set TMPDIR to another folder",
        )
    runtime = load_runtime(path, RuntimeOptions(threads=1))
    kind: Format = "onnx" if runtime.name == "onnx" else "tflite"
    return FloatModel(path, kind, size_bytes, runtime.inputs, runtime.outputs, runtime.run)


def quantizer_of(model: FloatModel, settings: QuantizeSettings) -> Quantizer:
    """The quantizer for models of this format. Raises `ConfigError`, which names the extra, if a package is missing."""
    with ExtraMissing.on_import("quantize", "PACKAGE is not installed"):
        if model.format == "onnx":
            from upwell.tools.quantize.onnx_qdq import OnnxQuantizer

            return OnnxQuantizer(model, settings)
        from upwell.tools.quantize.tflite_int8 import TfliteQuantizer

        return TfliteQuantizer(model, settings)


def quantize_model(
    path: Path, data: Path, out: Path, settings: QuantizeSettings, keep_float: Sequence[str], track: Track
) -> Quantized:
    """Quantize the model at `path`; nothing is written. Raises `ConfigError` for every problem with either file."""
    model = open_float_model(path)
    samples = read_samples(data, model)
    quantizer = quantizer_of(model, settings)
    check_kept(path, quantizer, keep_float)
    return _Work(model, quantizer, samples, settings, keep_float, track).done(out)


def _size_bytes(path: Path) -> int:
    weights: tuple[Path, ...] = ()
    if path.suffix.lower() == ".onnx":
        try:
            weights = external_weights(path)
        except BadOnnxFile as error:
            raise ConfigError.at(path, str(error)) from None
    return sum(file.stat().st_size for file in (path, *weights))


class _Work:
    """One model, its quantizer and its data."""

    def __init__(
        self,
        model: FloatModel,
        quantizer: Quantizer,
        samples: Samples,
        settings: QuantizeSettings,
        asked: Sequence[str],
        track: Track,
    ) -> None:
        self._model = model
        self._quantizer = quantizer
        self._samples = samples
        self._settings = settings
        self._asked = asked
        self._track = track
        self._is_exact = settings.target == "npu"
        self._keeps_tail = samples.detector is not None and settings.interface == "float"
        self._chooses = self._keeps_tail and not self._is_exact and not asked
        self._seen, self._chosen_on, self._measured = samples.split(self._chooses)

    def done(self, out: Path) -> Quantized:
        """Do all steps, in order."""
        self._first_run()
        self._quantizer.calibrate(case.feed for case in self._cases(self._seen, "calibrating"))
        keep_float, unsure = self._kept()
        (model,) = (self._quantizer.quantized(kept) for kept in self._track([keep_float], "quantizing"))
        comparison = self._comparison(model, self._measured, "measuring")
        few = self._cases(self._measured[:_LAYER_ROWS], "comparing layers")
        layers = self._quantizer.layers(model, (case.feed for case in few))
        losses = _losses(comparison)
        report = QuantizeReport(
            model=str(self._model.path),
            out=str(out),
            scheme=self._quantizer.scheme,
            target=self._settings.target,
            method=self._settings.method,
            data=self._data_used(),
            size_before=self._model.size_bytes,
            size_after=len(model),
            comparison=comparison,
            layers=layers,
            int8_work=_int8_work(self._quantizer.graph, layers),
            kept_float=tuple(keep_float),
            times=None if self._is_exact else self._times(model),
            warnings=(
                *self._data_warnings(),
                *self._undescribed(),
                *unsure,
                *_small_gain(self._model.size_bytes, len(model), self._quantizer.graph, keep_float),
                *_not_finite(comparison),
                *self._saturation(model),
                *losses,
            ),
        )
        if losses:
            report = replace(report, advice=self._advice(report))
        return Quantized(model, report)

    def _kept(self) -> tuple[Sequence[str], Sequence[str]]:
        """What stays float: what was asked for, and of a detector its tail; where nothing was asked for also as many of
        its layers as its scores need. With it a warning if that was chosen on too few boxes.

        This is judged on rows of its own: on those that calibrate, no value is out of range.
        """
        if not self._keeps_tail:
            return self._asked, ()
        parts = detector_parts(self._quantizer)
        kept = tuple(dict.fromkeys([*self._asked, *parts.tail]))
        if not self._chooses:
            return kept, ()
        before = found_boxes(self._model.run, self._samples, self._cases(self._chosen_on, "running the float model"))
        warnings = _few_boxes(box_count(before), len(before))
        if self._score_error(before, kept) <= _SURE_SCORE_ERROR:
            return kept, warnings
        step = -(-len(before) // _RANKED_ROWS)
        quantized = chosen(
            [parts.work(at) for at in range(len(parts.groups))],
            lambda some: self._deviation(before, (*kept, *parts.beside(some)), step),
            lambda some: self._score_error(before, (*kept, *parts.beside(some))),
        )
        return (*kept, *parts.beside(quantized)), warnings

    def _score_error(self, before: Sequence[Array], keep_float: Sequence[str]) -> float:
        """What 99 % of the scores move by at most with these nodes float.

        A box without a partner has no score that could move, so the share lost beyond what is allowed is added: too
        much of either alone is too much.
        """
        change = self._change(before, keep_float, 1)
        return change.score_error_p99 + _lost(change)

    def _deviation(self, before: Sequence[Array], keep_float: Sequence[str], step: int) -> float:
        """By what standard deviation the scores move with these nodes float, and the share of boxes lost as above."""
        change = self._change(before, keep_float, step)
        return change.score_error_rms + _lost(change)

    def _change(self, before: Sequence[Array], keep_float: Sequence[str], step: int) -> DetectionChange:
        """The change of detections with these nodes float, on every `step`-th row."""
        run = self._opened(self._quantizer.quantized(keep_float))
        cases = self._cases(self._chosen_on[::step], f"trying {count_of(len(keep_float), 'node')} as float")
        return detection_change(before[::step], found_boxes(run, self._samples, cases))

    def _opened(self, model: bytes) -> Run:
        return self._quantizer.opened(model, "exact" if self._is_exact else "served")

    def _cases(self, rows: Sequence[int], doing: str) -> Iterator[SampleRow]:
        for run in self._track(self._samples.runs(rows), doing):
            yield self._samples.case(run)

    def _first_run(self) -> None:
        """Run once: a model that cannot be run on the data fails here, before the long part."""
        case = self._samples.case(self._samples.runs(self._seen)[0])
        try:
            self._model.run(case.feed)
        except UpwellError as error:
            raise ConfigError.at(self._samples.path, f"the model cannot be run on it: {error}", "--data") from None

    def _comparison(self, model: bytes, rows: Sequence[int], doing: str) -> OutputComparison:
        return compared(self._model.run, self._opened(model), self._samples, self._cases(rows, doing))

    def _saturation(self, model: bytes) -> Sequence[str]:
        """A warning about a model for CPUs that some of them compute wrongly, with the result on this one."""
        if self._model.format != "onnx" or self._is_exact:
            return ()
        with tempfile.TemporaryDirectory(prefix="upwell-quantize-") as folder:
            file = Path(folder, "model.onnx")
            file.write_bytes(model)
            if not saturation(file, _WITHOUT_VNNI):
                return ()
        plain, exact = (self._error(model, arithmetic) for arithmetic in ("plain", "exact"))
        here = "like" if plain > _OVERFLOWS * exact else "unlike"
        return (
            f"s8 weights overflow on x86 CPUs without VNNI, {here} this one: "
            f"relative error {plain:.4f} in plain ONNX Runtime here, {exact:.4f} with exact sums. On such CPUs the "
            "agent uses a slower kernel that does not overflow; --weights u8 is right on all CPUs",
        )

    def _error(self, model: bytes, arithmetic: Arithmetic) -> float:
        run = self._quantizer.opened(model, arithmetic)
        cases = self._cases(self._measured[:_LAYER_ROWS], "looking for overflows")
        return compared(self._model.run, run, self._samples, cases).worst_error

    def _data_warnings(self) -> Sequence[str]:
        if self._samples.count >= FEWEST_TO_HOLD_OUT:
            return ()
        rows = count_of(self._samples.count, "row")
        return (f"only {rows}: ranges may be too narrow, and nothing is held out to show it",)

    def _undescribed(self) -> Sequence[str]:
        """A warning about what looks like a detector, if nothing says so: its scores share one scale with its boxes."""
        takes_picture = len(self._model.inputs) == 1 and len(self._model.inputs[0].shape) == 4
        if self._samples.detector is not None or not takes_picture or not likely_boxes(self._model.outputs)[0]:
            return ()
        return (
            "the outputs look like the boxes of a detector, but no step `boxes` of a model.yaml beside it says so: its "
            "scores are not kept float; `upwell model init` writes one",
        )

    def _data_used(self) -> DataUsed:
        samples = self._samples
        return DataUsed(
            path=str(samples.path),
            described_by=str(samples.described_by or ""),
            rows=samples.count,
            calibrated_on=len(self._seen),
            chosen_on=len(self._chosen_on),
            measured_on=len(self._measured),
            held_out=samples.count >= FEWEST_TO_HOLD_OUT,
        )

    def _advice(self, report: QuantizeReport) -> Sequence[Suggestion]:
        """What keeping the worst layers float would gain, each alone and all together; best first."""
        able = {node.name for node in self._quantizer.nodes} - set(report.kept_float)
        worst = [layer.node for layer in report.worst_first if layer.node in able][:_TRIED]
        sets = [(node,) for node in worst] + ([tuple(worst)] if len(worst) > 1 else [])
        tried = []
        for nodes in sets:
            try:
                model = self._quantizer.quantized([*report.kept_float, *nodes])
            except ConfigError:  # nothing would be left to quantize
                continue
            doing = f"trying {nodes[0]} as float" if len(nodes) == 1 else f"trying {len(nodes)} nodes as float"
            comparison = self._comparison(model, self._measured[:_TRIED_ROWS], doing)
            accuracy = None if comparison.accuracy is None else comparison.accuracy.after
            within = None if comparison.detections is None else comparison.detections.scores_within
            tried.append(Suggestion(nodes, accuracy, comparison.worst_error, within))
        return sorted(tried, key=lambda one: (-(one.accuracy or one.scores_within or 0.0), one.worst_error))

    def _times(self, model: bytes) -> Times:
        """The medians of alternating runs of both."""
        feed = self._samples.case(self._samples.runs(self._seen)[0]).feed
        runs = self._model.run, self._quantizer.opened(model)
        samples: tuple[list[float], list[float]] = ([], [])
        for _ in self._track(range(_TIMED_RUNS), "timing"):
            for run, durations in zip(runs, samples, strict=True):
                started_s = time.perf_counter()
                run(feed)
                durations.append(time.perf_counter() - started_s)
        before_ms, after_ms = (statistics.median(durations) * 1e3 for durations in samples)
        return Times(before_ms, after_ms)


def chosen(
    work: Sequence[float],
    deviation_of: Callable[[Sequence[int]], float],
    error_of: Callable[[Sequence[int]], float],
) -> Sequence[int]:
    """Which groups of layers become int8: as many as together are close enough, first those that cost least for their
    work; the best one alone if none is close.

    `deviation_of` tells by what standard deviation the scores move with these groups in int8, `error_of` what 99 % of
    them move by. Deviations of groups are independent, so their squares add up: a group costs what it adds to the
    square. Those still float are put in order anew after each success: beside int8 ones they cost less, since a value
    between two layers is rounded once. One that is too much stays float, whatever follows it.

    Bisection takes few tries; where more groups have a smaller error, it may take fewer than it could, but never
    groups that were not tried together or are not close.
    """
    taken: list[int] = []
    alone = squares = costs = {at: deviation_of([at]) ** 2 for at in range(len(work))}
    left = list(alone)
    while left:
        first, *others = sorted(left, key=lambda at: costs[at] / work[at])
        if error_of([*taken, first]) > _SURE_SCORE_ERROR:
            left = others
            continue
        taken.append(first)
        counts = range(1, len(others) + 1)
        count = bisect_right(counts, _SURE_SCORE_ERROR, key=lambda count: error_of([*taken, *others[:count]]))
        taken += others[:count]
        left = others[count + 1 :]  # the next one was too much
        if len(left) > 1:
            already = deviation_of(taken) ** 2 if count else squares[first]
            squares = {at: deviation_of([*taken, at]) ** 2 for at in left}
            costs = {at: max(0.0, square - already) for at, square in squares.items()}
    return taken or [min(alone, key=lambda at: alone[at])]


def _lost(change: DetectionChange) -> float:
    """The share of boxes without a partner beyond what is allowed."""
    return max(0.0, _LEAST_MATCHED - change.matched)


def _few_boxes(boxes: int, rows: int) -> Sequence[str]:
    if boxes >= _FEWEST_BOXES:
        return ()
    found = "1 box" if boxes == 1 else f"{boxes or 'no'} boxes"
    return (
        f"the float model finds {found} on the {count_of(rows, 'row')} that float layers are chosen on, too few to "
        "choose well; give more rows that show something",
    )


def _int8_work(graph: Sequence[LayerNode], layers: Sequence[Layer]) -> float:
    names = {layer.node for layer in layers if layer.precision == "int8"}
    work = sum(node.work for node in graph)
    return sum(node.work for node in graph if node.name in names) / work if work else math.nan


def _small_gain(before: int, after: int, graph: Sequence[LayerNode], kept: Sequence[str]) -> Sequence[str]:
    names = set(kept)
    weights = sum(node.weights for node in graph)
    stay = sum(node.weights for node in graph if node.name in names) / weights if weights else 1.0
    if after < max(_MOST_SIZE * before, _LEAST_BYTES) and stay < _MOST_FLOAT:
        return ()
    return (
        f"int8 gains little here: the file has {after / before:.0%} of the float one's bytes, "
        f"and {stay:.0%} of the weights stay float",
    )


def _not_finite(comparison: OutputComparison) -> Sequence[str]:
    return [
        f"output {one.name!r} of the float model has {one.not_finite} values that are not finite; the relative "
        "error leaves them out"
        for one in comparison.outputs
        if one.not_finite
    ]


def _losses(comparison: OutputComparison) -> Sequence[str]:
    """A warning for each loss that is too large."""
    accuracy = comparison.accuracy
    if accuracy is not None:
        fall = accuracy.before - accuracy.after
        return () if fall <= _ACCURACY_FALL else (f"accuracy falls by {fall * 100:.1f} points",)
    boxes = comparison.detections
    if boxes is not None:
        lost = [] if boxes.matched >= _LEAST_MATCHED else [f"only {boxes.matched:.1%} of the boxes have a partner"]
        if boxes.scores_within < _LEAST_WITHIN:
            lost.append(f"only {boxes.scores_within:.1%} of the scores stay within {SCORE_ERROR}")
        return lost
    found = []
    if comparison.worst_agreement < _LEAST_AGREEMENT:
        found.append(f"only {comparison.worst_agreement:.1%} of the answers stay the same")
    if comparison.worst_error > _MOST_ERROR:
        found.append(f"the relative error of an output is {comparison.worst_error:.2f}")
    return found

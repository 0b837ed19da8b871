"""Reads data for a model: `.npz` and `.npy` files, whose sizes are checked before memory is allocated and of which no
Python objects are read, and folders of pictures, which are read when they are needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from upwell.edge.runtimes.input_check import describe, shape_fits
from upwell.shared.errors import ConfigError, InvalidRequest, Problem
from upwell.shared.files import read_file
from upwell.shared.formats.npy import read_npy, read_npz
from upwell.shared.partition.split.halves_model_yaml import description_of
from upwell.shared.signature.model_yaml import load_description
from upwell.shared.signature.processor import Prepared, Processor
from upwell.shared.signature.signature import LogicalInput
from upwell.shared.signature.step_values import Geometry
from upwell.shared.tensors import Array, TensorSpec, numpy_dtype
from upwell.tools.policy.collect.input_items import find_items
from upwell.tools.quantize.quantizer import Feed, FloatModel

MAX_BYTES = 8 << 30
MAX_PICTURE_BYTES = 64 << 20
UNNAMED = "arr_0"
"""The name that `numpy.savez` gives to the first unnamed array, used here also for the array of a .npy file."""


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of a file by name; for a folder one with the paths of its pictures.

    Raises `ConfigError` for an invalid file, or one too large to hold.
    """
    if path.is_dir():
        return {UNNAMED: _paths(path)}
    if path.suffix.lower() not in (".npz", ".npy"):
        problem = "expected a folder of pictures, or an .npz or .npy file of numpy.savez or numpy.save"
        raise ConfigError.at(path, problem, "--data")
    try:
        arrays = read_npz(path, MAX_BYTES) if path.suffix.lower() == ".npz" else {UNNAMED: _one(path)}
        if not arrays:
            raise ValueError("it contains no arrays")
    except OSError as error:
        raise ConfigError.at(path, f"cannot be read: {error.strerror or error}", "--data") from None
    except ValueError as error:
        raise ConfigError.at(path, f"cannot be read as NumPy arrays: {error}", "--data") from None
    return arrays


def _paths(folder: Path) -> Array:
    items = find_items(folder)
    for item in items:
        if item.path.suffix.lower() in (".npy", ".npz"):
            raise ConfigError.at(item.path, "a folder may hold pictures alone; put all arrays into one .npz", "--data")
    paths = np.empty(len(items), np.object_)
    paths[:] = [item.path for item in items]
    return paths


def _one(path: Path) -> Array:
    size_bytes = path.stat().st_size
    if size_bytes > MAX_BYTES:
        raise ValueError(f"it has {size_bytes} bytes; at most {MAX_BYTES} bytes are allowed")
    with path.open("rb") as file:
        return read_npy(file, size_bytes)


LABELS = "labels"

MOST_CALIBRATION_ROWS = 512
FEWEST_TO_HOLD_OUT = 20
"""With fewer rows, all rows are used both to calibrate and to measure."""


@dataclass(frozen=True)
class SampleRow:
    """The tensors of one run, and the rows of the data in it; anything after `rows` is padding.

    `geometry` maps boxes in pixels back to the picture.
    """

    feed: Feed
    rows: Sequence[int]
    geometry: Geometry | None = None


class Samples:
    """Rows of data that fit a model. `described_by` is the `model.yaml` whose signature they fit, None for tensors.

    `labels`, int64 [rows, ...], is the correct class for each score vector, if the data has it. `described` has the
    `post` of `model.yaml`. `detector` is the same if that makes detections, else None; `embeddings` names the outputs
    that it calls so, `of_second` those with the probability of the second of two classes.
    """

    def __init__(
        self,
        path: Path,
        described_by: Path | None,
        processor: Processor,
        arrays: Mapping[str, Array],
        labels: Array | None,
        described: Processor,
    ) -> None:
        self.detector = described if _detections(described) else None
        outputs = described.signature.outputs
        self.embeddings = frozenset(one.name for one in outputs if one.kind == "embedding")
        self.of_second = frozenset(
            one.name for one in outputs if one.kind == "probabilities" and one.spec.shape[-1] == 1
        )
        self.path = path
        self.described_by = described_by
        self.labels = labels
        self.has_rows = processor.signature.has_rows
        self.count = len(next(iter(arrays.values())))
        self._arrays = arrays
        self._processor = processor
        self._per_run = max(processor.chunk, 1)
        self._images = {one.name for one in processor.signature.inputs if one.kind == "image"}

    def runs(self, rows: Sequence[int]) -> list[Sequence[int]]:
        """These rows as runs of the model: one each unless the model fixes more."""
        return [rows[start : start + self._per_run] for start in range(0, len(rows), self._per_run)]

    def case(self, rows: Sequence[int]) -> SampleRow:
        """The run for one of `runs`. Raises `ConfigError` for a row that pre-processing refuses."""
        indexes = np.asarray([*rows, *[rows[-1]] * (self._per_run - len(rows))], np.intp)
        given = {
            name: _opened(array[indexes]) if self.has_rows or name in self._images else array[rows[0]]
            for name, array in self._arrays.items()
        }
        try:
            prepared = self._processor.pre(given)
        except InvalidRequest as error:
            row = next((one for array in self._arrays.values() if isinstance(one := array[rows[0]], Path)), None)
            raise ConfigError.at(row or self.path, str(error) if row else f"row {rows[0]}: {error}", "--data") from None
        feed = {name: np.asarray(tensor, order="C") for name, tensor in prepared.tensors.items()}  # a scalar stays one
        return SampleRow(feed, rows, prepared.geometry)

    def detections(self, outputs: Mapping[str, Array], case: SampleRow) -> Array | None:
        """The detections in the rows of a run, FP32 [rows, max, 6]; None if `model.yaml` makes no boxes."""
        if self.detector is None:
            return None
        count = len(next(iter(case.feed.values()))) if self.has_rows else 1
        prepared = Prepared(case.feed, count, case.geometry or _whole(case.feed, count))
        found = self.detector.post(outputs, prepared)[_detections(self.detector)[0]]
        return found[: len(case.rows)]

    def split(self, choosing: bool) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """The rows to calibrate on, those to choose layers on if that is done, and those to measure on, disjoint unless
        there are too few.

        Half of them, at most 512, drawn with a fixed seed, are for calibration. Of the others two thirds, at most 512,
        are for choosing; what is left is held out to measure.
        """
        if self.count < FEWEST_TO_HOLD_OUT:
            return range(self.count), range(self.count if choosing else 0), range(self.count)
        order = np.random.default_rng(0).permutation(self.count)
        first = min(self.count // 2, MOST_CALIBRATION_ROWS)
        second = first + (min((self.count - first) * 2 // 3, MOST_CALIBRATION_ROWS) if choosing else 0)
        return sorted(order[:first].tolist()), sorted(order[first:second].tolist()), sorted(order[second:].tolist())


def _opened(values: Array) -> Array:
    """The values, or instead of the paths of pictures what is in them. Raises `ConfigError`."""
    if values.dtype != np.object_ or not isinstance(values[0], Path):
        return values
    pictures = np.empty(len(values), np.object_)
    pictures[:] = [read_file(path, "a picture", MAX_PICTURE_BYTES) for path in values]
    return pictures


def _detections(processor: Processor) -> list[str]:
    return [output.name for output in processor.signature.outputs if output.kind == "detections"]


def _whole(feed: Feed, rows: int) -> Geometry | None:
    """The geometry of pictures given as the model's own tensor: the first with four dimensions, channels first or
    last.
    """
    shapes = [tensor.shape for tensor in feed.values() if tensor.ndim == 4]
    if not shapes:
        return None
    height, width = shapes[0][2:] if shapes[0][1] in (1, 3) else shapes[0][1:3]
    return Geometry.of([(width, height)] * rows)


def read_samples(path: Path, model: FloatModel) -> Samples:
    """The data at `path` for a model. Raises `ConfigError` with everything that does not fit.

    If a `model.yaml` beside the model describes inputs with the arrays' names, the data is what callers send, and
    goes through its `pre`; otherwise the arrays are the model's own tensors.
    """
    arrays = read_arrays(path)
    described_by = description_of(model.path)
    plain = Processor(None, model.inputs, model.outputs, model.format)
    processor = plain
    if described_by is not None:
        try:
            description = load_description(described_by)
            processor = Processor(description, model.inputs, model.outputs, model.format)
        except ConfigError:
            if not _names_fit(arrays, plain):
                raise
    for one, source in ((processor, described_by), (plain, None)):
        if _names_fit(arrays, one):
            return _samples(path, None if one is plain else source, one, arrays, processor)
    raise _wrong_names(path, arrays, processor, plain)


def _names_fit(arrays: Mapping[str, Array], processor: Processor) -> bool:
    return set(_renamed(arrays, processor)) == {one.name for one in processor.signature.inputs}


def _renamed(arrays: Mapping[str, Array], processor: Processor) -> dict[str, Array]:
    """The arrays without the labels; an unnamed one gets the name of a model's only input."""
    inputs = [one.name for one in processor.signature.inputs]
    left = {name: array for name, array in arrays.items() if name != LABELS or name in inputs}
    if list(left) == [UNNAMED] and len(inputs) == 1:
        return {inputs[0]: left[UNNAMED]}
    return left


def _wrong_names(path: Path, arrays: Mapping[str, Array], processor: Processor, plain: Processor) -> ConfigError:
    has = "pictures for one input" if path.is_dir() else f"the arrays {', '.join(map(repr, arrays))}"
    ways = [", ".join(repr(one.name) for one in way.signature.inputs) for way in (processor, plain)]
    wanted = ways[1] if ways[0] == ways[1] else f"{ways[0]} (what callers send) or {ways[1]} (the model's tensors)"
    return ConfigError.at(path, f"it has {has}; expected {wanted}, and {LABELS!r} if accuracy is wanted", "--data")


def _samples(
    path: Path,
    described_by: Path | None,
    processor: Processor,
    arrays: Mapping[str, Array],
    described: Processor,
) -> Samples:
    problems: list[str] = []
    fitted: dict[str, Array] = {}
    signature = processor.signature
    by_name = _renamed(arrays, processor)
    for one in signature.inputs:
        try:
            fitted[one.name] = _fitted(by_name[one.name], one, signature.has_rows)
        except ValueError as error:
            problems.append(f"array {one.name!r} {error}")
    is_label = LABELS in arrays and LABELS not in fitted and LABELS not in by_name
    counts = {name: len(array) for name, array in fitted.items()}
    if is_label and arrays[LABELS].ndim:
        counts[LABELS] = len(arrays[LABELS])
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{name!r} {count}" for name, count in counts.items())
        problems.append(f"the arrays must all have the same number of rows, but have {each}")
    try:
        labels = _labels(arrays[LABELS]) if is_label else None
    except ValueError as error:
        problems.append(f"array {LABELS!r} {error}")
    if problems:
        raise ConfigError([Problem(path, None, None, "--data", problem) for problem in problems])
    return Samples(path, described_by, processor, fitted, labels, described)


def _fitted(array: Array, one: LogicalInput, has_rows: bool) -> Array:
    """The array as the rows of an input. Raises `ValueError` if it does not fit."""
    if array.ndim == 0 or len(array) == 0:
        raise ValueError("has no rows")
    if array.dtype == np.object_ and one.kind != "image":
        takes = f"input {describe(one.spec)} takes none; `upwell model init` describes one as a picture"
        raise ValueError(f"has pictures, but {takes}")
    if one.kind == "image":
        return _pictures(array)
    spec = one.spec if not has_rows else TensorSpec(one.name, one.spec.datatype, one.spec.shape[1:])
    if not shape_fits(spec.shape, array.shape[1:]):
        takes = f"N rows of {one.spec.datatype} {list(spec.shape)}"
        raise ValueError(f"is {array.dtype} {list(array.shape)}; input {describe(one.spec)} takes {takes}")
    return _converted(array, one.spec.datatype)


def _converted(array: Array, datatype: str) -> Array:
    """Convert to the input's datatype: another width of the same kind is converted, another kind is refused."""
    if datatype == "BYTES":
        return _texts(array)
    wanted = numpy_dtype(datatype)
    if array.dtype != wanted:
        if array.dtype.kind != wanted.kind or array.dtype.kind not in "fiu":
            raise ValueError(
                f"is {array.dtype}, but the input takes {wanted}; scale it as in training, then convert it with .astype"
            )
        made = array.astype(wanted)
        if wanted.kind != "f" and not np.array_equal(made, array):
            raise ValueError(f"is {array.dtype} with numbers that {wanted} cannot hold")
        array = made
    if wanted.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"has numbers that are not finite: {int((~np.isfinite(array)).sum())} of {array.size}")
    return array


def _pictures(array: Array) -> Array:
    if array.dtype == np.object_:
        return array
    if array.dtype.kind in "SU":
        return _texts(array)
    if array.dtype == np.uint8 and array.ndim == 3:
        array = array[..., None]
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] not in (1, 3) or 0 in array.shape:
        raise ValueError(
            f"is {array.dtype} {list(array.shape)}; expected pictures, UINT8 [N, height, width] or [N, height, width, "
            "1 or 3], or an encoded picture per row"
        )
    return array


def _texts(array: Array) -> Array:
    if array.dtype.kind not in "SU":
        raise ValueError(f"is {array.dtype}; expected bytes or text")
    texts = np.char.encode(array, "utf-8") if array.dtype.kind == "U" else array
    return texts.astype(np.object_)


def _labels(labels: Array) -> Array:
    if labels.ndim == 0 or labels.dtype.kind not in "iu":
        raise ValueError(f"is {labels.dtype} {list(labels.shape)}; expected the number of a class for each row")
    if labels.size and int(labels.min()) < 0:
        raise ValueError(f"holds {int(labels.min())}, but classes count from 0")
    return labels.astype(np.int64)

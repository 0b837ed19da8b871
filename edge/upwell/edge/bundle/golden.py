"""Golden vectors: requests with the expected answers, stored beside a model and checked when it loads.

They use the signature's inputs and outputs, as callers do, so one file serves every runtime and model file of a bundle.
`golden.npz` contains uncompressed or deflated numpy arrays, rows first:

- `in.<name>`, `out.<name>`: an input or output of the signature; BF16 as `<V2`, as numpy writes it;
- `label` and `right`, where there are labels: the class of each row as INT64, and the share of rows that must get it
  right;
- `in_bytes.<name>` and `in_ends.<name>` (`out_...`) instead for BYTES: all elements one after the other as UINT8, and
  where each ends as INT64, in the shape of the input.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from upwell.edge.bundle.output_tolerances import Agreement, Tolerances, compare
from upwell.edge.runtimes.base import Runtime
from upwell.shared.errors import ConfigError, UpwellError
from upwell.shared.files import open_plain
from upwell.shared.formats.npy import read_npz
from upwell.shared.signature.answer_agreement import Judge
from upwell.shared.signature.processor import Processor
from upwell.shared.signature.signature import Signature
from upwell.shared.tensors import Array, is_float, numpy_dtype, oip_datatype

MAX_BYTES = 256 << 20
"""Golden vectors that unpack to more are refused before anything is unpacked."""
_MAX_ARRAYS = 256
_LABEL, _RIGHT = "label", "right"
_ROUNDING = 1e-6
"""Far less than one row: 56 % of 25 rows are 14.000000000000002 in floating point."""

AnswerFunction = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""Maps the signature's inputs to its outputs."""


@dataclass(frozen=True)
class Labels:
    """The class of each row, and the share of rows that must get it right."""

    classes: Array
    right: float


@dataclass(frozen=True)
class GoldenVectors:
    """Inputs and outputs of a signature, with equal rows if it has rows, and labels if known."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    labels: Labels | None = None


def answer_function(processor: Processor, runtime: Runtime) -> AnswerFunction:
    """The function from callers' inputs to answers, bypassing the scheduler. Raises as `EdgeModel.run` does."""

    def answer(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        prepared = processor.pre(inputs)
        outputs = processor.run_rows(runtime.run, prepared)
        return outputs if processor.identity else processor.post(outputs, prepared)

    return answer


def check_golden(processor: Processor, runtime: Runtime, golden: GoldenVectors, limits: Tolerances) -> Agreement:
    """Run the model on the golden vectors; rejecting them or failing on them counts as not passed."""
    signature = processor.signature
    missing = [one.name for one in signature.outputs if one.name not in golden.outputs]
    if missing:
        return Agreement(False, f"the golden vectors lack output {missing[0]!r}")
    try:
        answers = answer_function(processor, runtime)(golden.inputs)
    except UpwellError as error:
        return Agreement(False, f"it fails on the golden vectors: {error}")
    verdict = compare(signature.outputs, answers, golden.outputs, limits)
    if golden.labels is None or not verdict.passed:
        return verdict
    try:
        labelled = compare_labels(signature, answers, golden.labels)
    except ConfigError as error:
        return Agreement(False, f"it cannot be checked against labels: {error}")
    return Agreement(labelled.passed, f"{verdict.text}; {labelled.text}" if labelled.passed else labelled.text)


def compare_labels(signature: Signature, answers: Mapping[str, Array], labels: Labels) -> Agreement:
    """Whether enough rows get their class right. Raises `ConfigError` if labels and rows do not match."""
    judge = Judge(signature, box_score=1.0, with_labels=True)
    rows = len(answers[judge.output.name]) if signature.has_rows else 1
    classes = labels.classes.reshape(-1).tolist()
    if labels.classes.shape != (rows,) or min(classes) < 0 or (judge.classes and max(classes) >= judge.classes):
        expected = f"{rows} whole numbers from 0" + (f" to {judge.classes - 1}" if judge.classes else "")
        raise ConfigError.at(None, f"expected {expected}, one for each row", "--labels")
    found = [{name: array[row : row + 1] for name, array in answers.items()} for row in range(rows)]
    single = found if signature.has_rows else [answers]
    right = sum(judge.is_label(one, label) for one, label in zip(single, classes, strict=True))
    text = f"{judge.output.name}: {right} of {rows} rows match their label, {labels.right * 100:.3g} % needed"
    return Agreement(right >= labels.right * rows - _ROUNDING, text)


def record_golden(answer: AnswerFunction, inputs: Mapping[str, Array], labels: Labels | None = None) -> bytes:
    """The `golden.npz` of these inputs (several rows, of several classes) and their answers by `answer`.

    The same arrays give the same bytes. Raises what `answer` raises, and `ConfigError` if an answer contains a value
    that is not finite or the whole exceeds `MAX_BYTES`: no model could pass such a check.
    """
    outputs = answer(inputs)
    for name, array in outputs.items():
        if is_float(array.dtype) and not np.isfinite(array.astype(np.float64)).all():
            raise ConfigError.at(
                None, f"output {name!r} contains values that are not finite, so it is not a golden vector"
            )
    arrays: dict[str, Any] = {key: array for name, one in inputs.items() for key, array in _packed("in", name, one)}
    arrays.update({key: array for name, one in outputs.items() for key, array in _packed("out", name, one)})
    if labels is not None:
        arrays |= {_LABEL: labels.classes.astype(np.int64), _RIGHT: np.float64(labels.right).reshape(1)}
    if sum(array.nbytes for array in arrays.values()) > MAX_BYTES or len(arrays) > _MAX_ARRAYS:
        raise ConfigError.at(
            None, f"golden vectors may have at most {MAX_BYTES >> 20} MiB and {_MAX_ARRAYS} arrays; use fewer"
        )
    stream = io.BytesIO()
    np.savez_compressed(
        stream, **dict(sorted(arrays.items()))
    )  # a fixed date of 1980, so that equal vectors give equal files
    return stream.getvalue()


def read_golden(path: Path) -> GoldenVectors:
    """The golden vectors in the file at `path`.

    Raises `ConfigError` if the file is missing, damaged, larger than `MAX_BYTES` or no golden vectors. Sizes are
    checked before memory is allocated, and nothing is unpickled.
    """
    try:
        with open_plain(path) as file:
            read = read_npz(file, MAX_BYTES, _MAX_ARRAYS)
        arrays = {key: _named_dtype(array) for key, array in read.items()}
        labels = _labels(arrays)
        inputs, outputs = (_unpacked(side, arrays) for side in ("in", "out"))
        if not inputs or not outputs:
            raise ValueError("it has no inputs or no outputs; expected arrays `in.<name>` and `out.<name>`")
        if len(arrays) != sum(1 + array.dtype.hasobject for part in (inputs, outputs) for array in part.values()) + (
            2 * (labels is not None)
        ):
            raise ValueError("it has arrays other than `in.<name>` and `out.<name>`")
    except OSError as error:
        raise ConfigError.at(path, f"the golden vectors cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError.at(path, f"these are not golden vectors: {error}") from None
    return GoldenVectors(inputs, outputs, labels)


def _labels(arrays: Mapping[str, Array]) -> Labels | None:
    classes, right = arrays.get(_LABEL), arrays.get(_RIGHT)
    if classes is None and right is None:
        return None
    if classes is None or right is None or classes.dtype != np.int64 or classes.ndim != 1 or not classes.size:
        raise ValueError("`label` is not one INT64 for each row, with `right` beside it")
    if right.dtype != np.float64 or right.shape != (1,) or not 0.0 <= right[0] <= 1.0:
        raise ValueError("`right` is not a share from 0 to 1")
    return Labels(classes, float(right[0]))


def _named_dtype(array: Array) -> Array:
    """The array, with BF16 restored, which numpy writes as two plain bytes."""
    try:
        if array.dtype == np.dtype("V2"):
            return array.view(numpy_dtype("BF16"))
        if oip_datatype(array.dtype) == "BYTES":
            raise ValueError(f"an array of {array.dtype}; BYTES are stored as `in_bytes.<name>` and `in_ends.<name>`")
    except UpwellError as error:
        raise ValueError(str(error)) from None
    return array


def _packed(side: str, name: str, array: Array) -> list[tuple[str, Array]]:
    if not array.dtype.hasobject:
        return [(f"{side}.{name}", array)]
    elements = [bytes(element) for element in array.flat]
    ends = np.cumsum([len(element) for element in elements], dtype=np.int64).reshape(array.shape)
    return [
        (f"{side}_bytes.{name}", np.frombuffer(b"".join(elements), np.uint8)),
        (f"{side}_ends.{name}", ends),
    ]


def _unpacked(side: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    plain = f"{side}."
    found = {key.removeprefix(plain): array for key, array in arrays.items() if key.startswith(plain)}
    for key, data in arrays.items():
        if not key.startswith(f"{side}_bytes."):
            continue
        name = key.removeprefix(f"{side}_bytes.")
        ends = arrays.get(f"{side}_ends.{name}")
        if ends is None or name in found or ends.dtype != np.int64 or data.dtype != np.uint8 or data.ndim != 1:
            raise ValueError(f"{key!r} without a matching {side}_ends.{name}")
        found[name] = _elements(key, data.tobytes(), ends)
    return found


def _elements(key: str, data: bytes, ends: Array) -> Array:
    places = [0, *ends.reshape(-1).tolist()]
    if places[-1] != len(data) or any(end < start for start, end in itertools.pairwise(places)):
        raise ValueError(f"the ends given for {key!r} do not match its bytes")
    elements = np.empty(len(places) - 1, np.object_)
    elements[:] = [data[start:end] for start, end in itertools.pairwise(places)]
    return elements.reshape(ends.shape)

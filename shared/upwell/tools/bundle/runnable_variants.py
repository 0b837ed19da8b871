"""Every way in which this machine can run a bundle's models, whether they agree, and the requests they are run on.

The requests that golden vectors are recorded from are the user's own, or seeded random ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from upwell.edge.bundle.bundle import DESCRIPTION_NAME, GOLDEN_NAME
from upwell.edge.bundle.golden import Labels, answer_function, check_golden, compare_labels, read_golden, record_golden
from upwell.edge.bundle.output_tolerances import Agreement, Tolerances
from upwell.edge.models.plausible_outputs import implausible
from upwell.edge.runtimes.base import Runtime
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.runtimes.runtime_options import RuntimeOptions
from upwell.edge.runtimes.tflite.tflite_package import PREFERRED, find_package
from upwell.shared.errors import ConfigError, InvalidRequest, UpwellError
from upwell.shared.signature.model_yaml import Golden, load_description
from upwell.shared.signature.processor import Processor
from upwell.shared.signature.signature import LogicalInput, Signature
from upwell.shared.signature.tokenization import synthetic_bytes
from upwell.shared.tensors import Array, numpy_dtype
from upwell.tools.request_inputs import read_given
from upwell.tools.terminal import share

_VARYING = 8
_PICTURE_SIDE = 64
_PATCH = 8  # pixels per side: noise of single pixels would be averaged away
_BELOW = 2  # random indexes stay within the smallest table


def read_requests(path: Path) -> Mapping[str, Array]:
    """The arrays of a .npz by the names of the signature's inputs. Raises `ConfigError`."""
    if path.suffix.lower() != ".npz":
        raise ConfigError.at(path, "expected a .npz with an array for each input of the model, rows first", "--golden")
    return read_given(path, "--golden")


def read_labelled(
    path: Path | None, labels: str | None, right: str
) -> tuple[Mapping[str, Array] | None, Labels | None]:
    """The requests of `--golden`, and its array `labels`, which is no input. Raises `ConfigError`."""
    if path is None:
        if labels is not None:
            raise ConfigError.at(None, "expected --golden as well: labels refer to its requests", "--labels")
        return None, None
    requests = dict(read_requests(path))
    if labels is None:
        return requests, None
    classes = requests.pop(labels, None)
    if classes is None or classes.dtype.kind not in "iu" or classes.ndim != 1 or not classes.size:
        raise ConfigError.at(path, f"expected an array {labels!r} of whole numbers, one per row", "--labels")
    return requests, Labels(classes.astype(np.int64), share("--right", right))


def random_requests(signature: Signature) -> Mapping[str, Array]:
    """Random rows for every input, the same at each call: pictures of coloured patches, texts of made-up words,
    normally distributed numbers, integers 0 and 1. A dimension that varies is 8. Raises `ConfigError` for an input of
    bytes.
    """
    random = np.random.default_rng(0)
    return {one.name: _random(one, signature.has_rows, random) for one in signature.inputs}


def _random(one: LogicalInput, has_rows: bool, random: np.random.Generator) -> Array:
    rows = _VARYING if has_rows else 1
    if one.kind == "image":
        count = _PICTURE_SIDE // _PATCH
        patches = random.integers(0, 256, (rows, count, count, 3), np.uint8)
        return np.kron(patches, np.ones((1, _PATCH, _PATCH, 1), np.uint8))
    if one.kind in ("text", "record"):
        return synthetic_bytes(one, rows, random)
    if one.spec.datatype == "BYTES":
        problem = f"input {one.name!r} takes bytes, which cannot be generated; give requests with --golden"
        raise ConfigError.at(None, problem, "--golden")
    shape = [_VARYING if size < 0 else size for size in one.spec.shape]
    dtype = numpy_dtype(one.spec.datatype)
    if dtype.kind in "iub":
        return random.integers(0, _BELOW, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


MODEL_NAMES = ("model.onnx", "model.tflite")
_REMEDY = (
    "record them again with --golden FILE.npz if they are of another model, or exclude with --package NAME a TFLite "
    "package that no device uses"
)
_LABELS_REMEDY = (
    "where labels do not match, check that they number the model's classes from 0 and that `pre` is as in training, or "
    "say with --right how many must match"
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Variant:
    """A model file run by one package on the CPU."""

    file: str
    runtime: Runtime
    processor: Processor

    @property
    def label(self) -> str:
        """For example `model.tflite on ai-edge-litert 2.1.6`."""
        return f"{self.file} on {self.runtime.version}"


@dataclass(frozen=True)
class VariantCheck:
    """One variant's answers to the golden vectors."""

    variant: str
    verdict: Agreement


@dataclass(frozen=True)
class Models:
    """Every variant of a bundle's models, the file of its golden vectors, and how far answers may differ."""

    variants: Sequence[Variant]
    golden: Path
    limits: Tolerances


class Disagreement(UpwellError):
    """A model answers the golden vectors wrongly on a runtime of this machine."""


@contextmanager
def opened_models(folder: Path, package: str | None, step: Callable[[str], None]) -> Iterator[Models]:
    """Every model file of the bundle in `folder`, loaded by every package that can run it, closed after the block.

    `package` is the one TFLite package to use; None for all installed. Raises `ConfigError` if a model or its
    description is invalid, if a file has no package here, or if there is no model.
    """
    opened: list[Variant] = []
    try:
        path = folder / DESCRIPTION_NAME
        description = load_description(path) if path.exists() else None
        for file, options in _options_by_file(folder, package):
            step(f"loading {file}")
            runtime = load_runtime(folder / file, options)
            try:
                processor = Processor(description, runtime.inputs, runtime.outputs, runtime.name)
            except ConfigError:
                runtime.close()
                raise
            opened.append(Variant(file, runtime, processor))
        wanted = Golden() if description is None else description.golden
        yield Models(opened, wanted.file or folder / GOLDEN_NAME, Tolerances(wanted.tolerance, wanted.agree))
    finally:
        for one in opened:
            one.runtime.close()


def _options_by_file(folder: Path, package: str | None) -> Sequence[tuple[str, RuntimeOptions]]:
    files = [name for name in MODEL_NAMES if (folder / name).is_file()]
    if not files:
        raise ConfigError.at(folder, f"it contains no model; expected {' or '.join(MODEL_NAMES)}")
    options = [(name, RuntimeOptions(threads=1, instances=1)) for name in files if name.endswith(".onnx")]
    if "model.tflite" in files:
        packages: list[Any] = [package] if package else [one for one in PREFERRED if _is_here(one)] or [None]
        options += [("model.tflite", RuntimeOptions(threads=1, instances=1, package=one)) for one in packages]
    return options


def _is_here(package: str) -> bool:
    try:
        find_package(package)
    except ConfigError:
        return False
    return True


def record(
    models: Models, requests: Mapping[str, Array] | None, reference: Models | None = None, labels: Labels | None = None
) -> None:
    """Write the answers of the first variant, or of `reference`, to these requests or to random ones.

    Raises `ConfigError`, also if the reference's answers do not have the model's form.
    """
    own, first = models.variants[0], (reference or models).variants[0]
    signature = own.processor.signature
    inputs = random_requests(signature) if requests is None else _as_inputs(requests, signature)
    try:
        answers = answer_function(first.processor, first.runtime)(inputs)
        wanted = {one.name for one in own.processor.signature.outputs}
        if wanted - set(answers):
            problem = f"it gives {', '.join(answers)}, but the model gives {', '.join(sorted(wanted))}"
            raise ConfigError.at(None, problem, "--reference")
        if labels is not None:
            compare_labels(own.processor.signature, answers, labels)  # whether they fit; correctness is checked later
        data = record_golden(lambda _: {name: answers[name] for name in answers if name in wanted}, inputs, labels)
    except InvalidRequest as error:
        if reference is not None:
            problem = f"the other model does not take these requests, so its model.yaml must differ: {error}"
            raise ConfigError.at(None, problem, "--reference") from None
        problem = str(error) if requests is not None else f"random requests do not work: {error}; give real ones"
        raise ConfigError.at(None, problem, "--golden") from None
    models.golden.parent.mkdir(parents=True, exist_ok=True)
    models.golden.unlink(missing_ok=True)  # may be a hard link to the user's file
    models.golden.write_bytes(data)


def _as_inputs(requests: Mapping[str, Array], signature: Signature) -> Mapping[str, Array]:
    """The requests with gray pictures [rows, height, width] as [rows, height, width, 1], as quantizing takes them.

    Raises `ConfigError` for an array that is no input.
    """
    names = [one.name for one in signature.inputs]
    other = next((name for name in requests if name not in names), None)
    if other is not None:
        problem = f"the model takes {', '.join(names)}, not {other!r}; leave that array out"
        raise ConfigError.at(None, f"{problem}, or add --labels {other} if it holds the right classes", "--golden")
    pictures = {one.name for one in signature.inputs if one.kind == "image"}
    return {
        name: array[..., None] if name in pictures and array.ndim == 3 and array.dtype == np.uint8 else array
        for name, array in requests.items()
    }


def are_own_answers(models: Models) -> bool:
    """Whether the golden vectors equal, to the last bit, what the first variant answers to them."""
    golden, first = read_golden(models.golden), models.variants[0]
    try:
        answers = answer_function(first.processor, first.runtime)(golden.inputs)
    except UpwellError:
        return False
    return all(name in answers and np.array_equal(answers[name], one) for name, one in golden.outputs.items())


def check_all(models: Models, step: Callable[[str], None]) -> Sequence[VariantCheck]:
    """Ask every variant for the golden vectors. Raises `Disagreement`, which names each one that fails."""
    golden = read_golden(models.golden)
    for remark in implausible(models.variants[0].processor.signature.outputs, golden.outputs):
        _log.warning("in the golden vectors %s", remark)
    checks = []
    for one in models.variants:
        step(f"asking {one.label}")
        checks.append(VariantCheck(one.label, check_golden(one.processor, one.runtime, golden, models.limits)))
    failed = [f"{one.variant}: {one.verdict.text}" for one in checks if not one.verdict.passed]
    if failed:
        remedies = [_LABELS_REMEDY] if golden.labels is not None else []
        raise Disagreement("\n".join(["these answer the golden vectors wrongly:", *failed, *remedies, _REMEDY]))
    return checks

"""The facts that the files of a model tell: chooses the reader of their exporter, and reads the metadata in the file
itself, TFLite's, and files of labels. None of it is trusted.
"""

from __future__ import annotations

import contextlib
import json
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from upwell.shared.errors import ConfigError, printable
from upwell.shared.files import open_plain, read_file
from upwell.shared.formats.onnx.file import BadOnnxFile
from upwell.shared.formats.onnx.graph import read_class_names, read_metadata
from upwell.shared.formats.tflite import BadTfliteFile, TensorNote, read_notes
from upwell.shared.tensors import TensorSpec
from upwell.tools.model_init.exporter_facts import NOTHING_KNOWN, ExporterFacts, Outputs, PictureFacts
from upwell.tools.model_init.hugging_face_files import hugging_face, timm
from upwell.tools.model_init.sidecar_files import facts_beside
from upwell.tools.model_init.ultralytics_metadata import ultralytics

MAX_MEMBER_BYTES = 1 << 20
_ULTRALYTICS = "metadata.json"
_LONGEST_LINE = 500

_LABEL_FILES = ("labels.txt", "classes.txt", "class_names.txt", "labelmap.txt")


def own_metadata(model: Path) -> Mapping[str, str]:
    """The texts of the metadata, by name. Raises `ConfigError` for an ONNX file that cannot be read."""
    if model.suffix == ".tflite":
        return _strings(_member(model, _ULTRALYTICS))
    try:
        return read_metadata(model)
    except BadOnnxFile as error:
        raise ConfigError.at(model, str(error)) from None
    except OSError as error:
        raise ConfigError.at(model, f"cannot be read: {error.strerror}") from None


def tflite_facts(model: Path) -> ExporterFacts | None:
    """The metadata of tflite-support: the labels of an output, and the normalization of the input's pixels.

    The normalization is (pixel - mean) / std, for pixels 0..255. None if the file has no such metadata.
    """
    if model.suffix != ".tflite":
        return None
    try:
        with open_plain(model) as file:
            notes = read_notes(file.read())
    except (OSError, BadTfliteFile):
        return None  # the runtime reports what is wrong with it
    if notes is None:
        return None
    inputs, outputs = notes
    picture = next((_normalized(one) for one in inputs if one.mean), PictureFacts())
    return ExporterFacts("its TFLite metadata", _labels(model, outputs), picture)


def _normalized(note: TensorNote) -> PictureFacts:
    return PictureFacts(scale=1.0, mean=note.mean, std=note.std)


def _labels(model: Path, outputs: Sequence[TensorNote]) -> tuple[str, ...]:
    for name in (name for note in outputs for name in note.label_files):
        lines = _member(model, name).splitlines()
        if lines and all(line.strip() for line in lines):
            return tuple(line.strip() for line in lines)
    return ()


def _member(model: Path, name: str) -> str:
    """A text file packed behind the model; empty if it is missing or too large."""
    damaged = (
        OSError,
        zipfile.BadZipFile,
        zlib.error,
        KeyError,
        NotImplementedError,
        RuntimeError,
        EOFError,
        ValueError,
    )
    with contextlib.suppress(*damaged), open_plain(model) as file, zipfile.ZipFile(file) as archive:
        if archive.getinfo(name).file_size <= MAX_MEMBER_BYTES:
            with archive.open(name) as packed:
                return packed.read(MAX_MEMBER_BYTES).decode()
    return ""


def _strings(text: str) -> Mapping[str, str]:
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text) if text else {}
        if isinstance(found, dict):
            return {key: value if isinstance(value, str) else json.dumps(value) for key, value in found.items()}
    return {}


def facts_of(
    model: Path,
    metadata: Mapping[str, str],
    inputs: Sequence[TensorSpec],
    outputs: Outputs,
    otherwise: ExporterFacts | None = None,
) -> ExporterFacts:
    """The facts about the model at `model`, whose file has `metadata` of its own, or `otherwise` if it comes from no
    known exporter. Raises `ConfigError`.

    Where nothing else names the classes, the names in the file's own classifier count, then a file of labels beside it,
    if there are as many as the model has classes.
    """
    readers: tuple[Callable[[], ExporterFacts | None], ...] = (
        lambda: ultralytics(metadata, model, inputs, outputs),
        lambda: hugging_face(model, inputs, outputs),
        lambda: timm(model),
        lambda: facts_beside(model, metadata),
    )
    facts = next((found for read in readers if (found := read()) is not None), otherwise or NOTHING_KNOWN)
    facts = replace(facts, source=_line(facts.source), notes=tuple(map(_line, facts.notes)))
    if not facts.labels:
        facts = _with_own_classes(model, facts, outputs)
    return facts if facts.labels else _with_labels_beside(model, facts, outputs)


def _line(text: str) -> str:
    """Untrusted text as one line of bounded length, since it becomes a comment of the description."""
    return printable(" ".join(text[:_LONGEST_LINE].split()))


def _with_own_classes(model: Path, facts: ExporterFacts, outputs: Outputs) -> ExporterFacts:
    """As scikit-learn's converters and its kin write them into the operators of classifiers."""
    if model.suffix != ".onnx":
        return facts
    with contextlib.suppress(BadOnnxFile, OSError):
        labels = tuple(map(_line, read_class_names(model)))
        if labels and all(labels) and any(spec.shape[1:] == (len(labels),) for spec in outputs):
            return replace(facts, source=facts.source or "the model's classifier", labels=labels)
    return facts


def _with_labels_beside(model: Path, facts: ExporterFacts, outputs: Outputs) -> ExporterFacts:
    classes = {size for spec in outputs for size in spec.shape[1:] if size > 1}
    if [spec.shape[1:] for spec in outputs] == [(1,)]:
        classes = {2}  # the probability of the second alone
    for name in _LABEL_FILES:
        with contextlib.suppress(UnicodeDecodeError):
            path = model.parent / name
            lines = read_file(path, "a file of labels").decode("utf-8-sig").splitlines() if path.is_file() else []
            labels = tuple(line.strip() for line in lines if line.strip())
            if labels and {len(labels), len(labels) + 4, len(labels) + 5} & classes:
                return replace(facts, source=facts.source or f"{name} beside it", labels=labels)
    return facts

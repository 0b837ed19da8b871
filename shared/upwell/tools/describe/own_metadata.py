"""What a model's file says of itself: ONNX's `metadata_props`, and the metadata that TFLite files may carry."""

from __future__ import annotations

import contextlib
import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from upwell.shared.errors import ConfigError
from upwell.shared.files import open_plain
from upwell.shared.formats.onnx.bytes import BadOnnxFile
from upwell.shared.formats.onnx.graph import read_metadata
from upwell.shared.formats.tflite.flatbuffer import BadTfliteFile
from upwell.shared.formats.tflite.metadata import TensorNote, read_notes
from upwell.shared.signature.init import ExporterFacts, PictureFacts

MAX_MEMBER_BYTES = 1 << 20
_ULTRALYTICS = "metadata.json"


def own_metadata(model: Path) -> Mapping[str, str]:
    """Texts by name. Raises `ConfigError` for an ONNX file that cannot be read."""
    if model.suffix == ".tflite":
        return _strings(_member(model, _ULTRALYTICS))
    try:
        return read_metadata(model)
    except BadOnnxFile as error:
        raise ConfigError.at(model, str(error)) from None
    except OSError as error:
        raise ConfigError.at(model, f"cannot be read: {error.strerror}") from None


def tflite_facts(model: Path) -> ExporterFacts | None:
    """What the metadata of tflite-support says: the labels of an output, and what the input's pixels become.

    Its normalization is (pixel - mean) / std, of pixels 0..255. None where the file has no such metadata.
    """
    if model.suffix != ".tflite":
        return None
    try:
        with open_plain(model) as file:
            notes = read_notes(file.read())
    except (OSError, BadTfliteFile):
        return None  # the runtime says what is wrong with it
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
    """A text file that was packed behind the model, empty where there is none or it is too large."""
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

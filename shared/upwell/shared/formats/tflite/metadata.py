"""The tflite-support metadata inside a TFLite file: the meaning of its tensors.

It is a flatbuffer of its own (schema `metadata_schema.fbs`, identifier `M001`) in the buffer named by the entry
TFLITE_METADATA. Slots are those of the schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from upwell.shared.formats.tflite.flatbuffer import BadTfliteFile, Data, Flatbuffer, Table

_ENTRY = b"TFLITE_METADATA"
_IDENTIFIER = b"M001"
_BUFFERS, _METADATA = 4, 6
_SUBGRAPHS, _INPUTS, _OUTPUTS = 3, 2, 3
_UNITS, _FILES = 4, 6
_NORMALIZATION = 1
_LABELS = (2, 3)
"""Kinds of associated files: labels of an axis, labels of a value."""


@dataclass(frozen=True)
class TensorNote:
    """One tensor: mean and standard deviation of its normalization, and the files that name its classes."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    label_files: tuple[str, ...]


def read_notes(data: Data) -> tuple[Sequence[TensorNote], Sequence[TensorNote]] | None:
    """The notes on the model's inputs and outputs, None without metadata. Raises `BadTfliteFile`."""
    model = Flatbuffer(data).root()
    buffers = model.tables(_BUFFERS)
    for entry in model.tables(_METADATA):
        number = entry.number(1, "<I")
        if entry.text(0) == _ENTRY and number < len(buffers):
            return _notes(buffers[number].raw(0))
    return None


def _notes(data: bytes) -> tuple[Sequence[TensorNote], Sequence[TensorNote]]:
    if len(data) < 8 or data[4:8] != _IDENTIFIER:
        raise BadTfliteFile("its metadata is damaged")
    subgraphs = Flatbuffer(data).root().tables(_SUBGRAPHS)
    if not subgraphs:
        return (), ()
    inputs, outputs = ([_note(one) for one in subgraphs[0].tables(slot)] for slot in (_INPUTS, _OUTPUTS))
    return inputs, outputs


def _note(table: Table) -> TensorNote:
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    for unit in table.tables(_UNITS):
        options = unit.table(1) if unit.number(0, "<B") == _NORMALIZATION else None
        if options is not None:
            mean, std = options.floats(0), options.floats(1)
    files = [one.text(0).decode(errors="replace") for one in table.tables(_FILES) if one.number(2, "<b") in _LABELS]
    return TensorNote(mean, std, tuple(files))

"""The items of a folder, one request each, and the labels that go with them."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from upwell.edge.models.served import ServedModel
from upwell.edge.request.request import as_arrays
from upwell.shared.errors import ConfigError, InvalidRequest, Problem
from upwell.shared.oip.dataplane import ModelMetadata
from upwell.shared.signature.signature import LogicalInput, Signature
from upwell.shared.tensors import Array
from upwell.tools.infer.inputs import read_inputs

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".npy", ".npz"})
"""What counts as an item; other files in the folder are left alone."""

MAX_LABELS_BYTES = 64 << 20
_SHOWN = 20


@dataclass(frozen=True)
class Item:
    """One file: its name within the folder, with `/` between folders, and where it lies."""

    name: str
    path: Path


def find_items(folder: Path) -> list[Item]:
    """The items in the folder and those below it, by name. Raises `ConfigError` where there is none."""
    if not folder.is_dir():
        raise ConfigError.at(folder, "expected a folder of pictures, .npy or .npz files", "--data")
    try:
        found = [path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()]
    except OSError as error:
        raise ConfigError.at(folder, f"cannot be read: {error.strerror}", "--data") from None
    if not found:
        raise ConfigError.at(
            folder, f"no item in it; expected files that end in {', '.join(sorted(SUFFIXES))}", "--data"
        )
    return sorted((Item(path.relative_to(folder).as_posix(), path) for path in found), key=lambda item: item.name)


def read_item(item: Item, model: ServedModel) -> dict[str, Array]:
    """The item as a request of one row. Raises `ConfigError` or `InvalidRequest`."""
    assert model.edge is not None  # noqa: S101  collecting asks both sides
    if any("\ud800" <= letter <= "\udfff" for letter in item.name):  # how bytes that are no text stand in a name
        raise InvalidRequest("its name is not UTF-8, so no log can hold it; rename the file")
    signature = model.edge.signature
    specs = tuple(one.spec for one in signature.inputs)
    metadata = ModelMetadata(model.name, (), "", specs, ())
    # An absolute path, so that a name with `=` in it is not taken for NAME=FILE.
    arrays = as_arrays(dict(read_inputs([str(item.path.absolute())], lambda: metadata)), model)
    by_name = {one.name: one for one in signature.inputs}
    arrays = {
        name: _with_row(array, by_name[name], signature) if name in by_name else array for name, array in arrays.items()
    }
    rows = signature.check_inputs(arrays)
    if rows != 1:
        raise InvalidRequest(f"it holds {rows} rows; expected one item per file")
    return arrays


def _with_row(array: Array, one: LogicalInput, signature: Signature) -> Array:
    """The array with the dimension of rows, which a file of one item may leave out."""
    lacks_row = one.kind == "tensor" and signature.has_rows and array.ndim == len(one.spec.shape) - 1
    return array[None] if lacks_row else np.asarray(array)


def read_labels(path: Path, names: Sequence[str], texts: Sequence[str], classes: int) -> dict[str, int]:
    """Item name -> class, from a CSV file with the columns `file` and `label`.

    A label is one of `texts` or else the number of a class; `classes` is 0 where nobody knows how many there are.
    Items without a line are left out. Raises `ConfigError` with every problem.
    """
    rows = _read_rows(path)
    labels: dict[str, int] = {}
    problems: list[Problem] = []
    known = frozenset(names)
    by_text = {text: index for index, text in enumerate(texts)}
    for line, row in rows:
        try:
            name, label = _labelled(row, by_text, classes)
            if name not in known:
                raise ValueError(f"the data folder holds no item {name!r}")
            if name in labels:
                raise ValueError(f"{name!r} has a label already; expected one line per file")
            labels[name] = label
        except ValueError as error:
            problems.append(Problem(path, line, None, "", str(error)))
    if len(problems) > _SHOWN:
        more = Problem(path, None, None, "", f"and {len(problems) - _SHOWN} more problems")
        problems = [*problems[:_SHOWN], more]
    if problems:
        raise ConfigError(problems)
    return labels


def _read_rows(path: Path) -> list[tuple[int, Mapping[str, str | None]]]:
    try:
        if path.stat().st_size > MAX_LABELS_BYTES:
            raise ConfigError.at(path, f"larger than the {MAX_LABELS_BYTES >> 20} MiB that labels may have")
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = set(reader.fieldnames or ())
            rows: list[tuple[int, Mapping[str, str | None]]] = [(reader.line_num, row) for row in reader]
    except OSError as error:
        raise ConfigError.at(path, f"cannot be read: {error.strerror}", "--labels") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError.at(path, f"cannot be read as CSV in UTF-8: {error}", "--labels") from None
    if not {"file", "label"} <= columns:
        raise ConfigError.at(path, "expected a first line with the columns file,label", line=1)
    if not rows:
        raise ConfigError.at(path, "no label in it")
    return rows


def _labelled(row: Mapping[str, str | None], by_text: Mapping[str, int], classes: int) -> tuple[str, int]:
    name, text = ((row[key] or "").strip() for key in ("file", "label"))
    if not name or not text:
        raise ValueError("expected a file and its label")
    if text in by_text:
        return name, by_text[text]
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        expected = "a label of the model or the number of a class" if by_text else "the number of a class"
        raise ValueError(f"expected {expected}, got {text!r}")
    if classes and int(text) >= classes:
        raise ValueError(f"there is no class {text}; the model has the classes 0 to {classes - 1}")
    return name, int(text)

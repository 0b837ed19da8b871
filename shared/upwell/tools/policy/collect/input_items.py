"""The items of a folder, one request each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from upwell.edge.models.served_model import ServedModel
from upwell.edge.request.request import as_arrays
from upwell.shared.errors import ConfigError, InvalidRequest
from upwell.shared.oip.dataplane import ModelMetadata
from upwell.shared.signature.signature import LogicalInput, Signature
from upwell.shared.tensors import Array
from upwell.tools.request_inputs import read_inputs

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".npy", ".npz"})
"""The suffixes of items; other files in the folder are ignored."""


@dataclass(frozen=True)
class Item:
    """One file: its name within the folder, with `/` between folders, and its path."""

    name: str
    path: Path


def find_items(folder: Path) -> list[Item]:
    """The items in the folder and those below it, by name. Raises `ConfigError` if there is none."""
    if not folder.is_dir():
        raise ConfigError.at(folder, "expected a folder of pictures, .npy or .npz files", "--data")
    try:
        found = [path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()]
    except OSError as error:
        raise ConfigError.at(folder, f"cannot be read: {error.strerror}", "--data") from None
    if not found:
        raise ConfigError.at(
            folder, f"it contains no items; expected files that end in {', '.join(sorted(SUFFIXES))}", "--data"
        )
    return sorted((Item(path.relative_to(folder).as_posix(), path) for path in found), key=lambda item: item.name)


def read_item(item: Item, model: ServedModel) -> dict[str, Array]:
    """The item as a request of one row. Raises `ConfigError` or `InvalidRequest`."""
    assert model.edge is not None  # noqa: S101  collecting asks both sides
    if any("\ud800" <= letter <= "\udfff" for letter in item.name):  # bytes of a name that are not UTF-8
        raise InvalidRequest("its name is not UTF-8, which a log cannot contain; rename the file")
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
        raise InvalidRequest(f"it has {rows} rows; expected one item per file")
    return arrays


def _with_row(array: Array, one: LogicalInput, signature: Signature) -> Array:
    """The array with a row dimension, which a file of one item may leave out."""
    lacks_row = one.kind == "tensor" and signature.has_rows and array.ndim == len(one.spec.shape) - 1
    return array[None] if lacks_row else np.asarray(array)

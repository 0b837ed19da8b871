"""Inputs that a person gives, read with bounds: for `upwell infer`, and the arrays of a .npz for other commands."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from upwell.shared.errors import ConfigError
from upwell.shared.files import read_file
from upwell.shared.formats.npy import read_npy, read_npz
from upwell.shared.oip.codec.tensor_contents import DEFAULT_MAX_MESSAGE_BYTES
from upwell.shared.oip.dataplane import ModelMetadata
from upwell.shared.tensors import Array, TensorSpec

MAX_BYTES = 1 << 30


@dataclass(frozen=True)
class _Given:
    """One value to send: an array or one picture, for the input `name` (empty if the model determines it)."""

    name: str
    path: Path
    value: Array | bytes


def read_given(path: Path, option: str = "--inputs") -> dict[str, Array]:
    """The arrays of an .npz by name. Raises `ConfigError`, naming `option`, for an invalid file or one too large to
    hold.
    """
    try:
        return read_npz(path, MAX_BYTES)
    except OSError as error:
        raise ConfigError.at(path, f"cannot be read: {error.strerror or error}", option) from None
    except ValueError as error:
        raise ConfigError.at(path, f"cannot be read as an .npz file: {error}", option) from None


def read_inputs(texts: Sequence[str], metadata: Callable[[], ModelMetadata]) -> dict[str, Array]:
    """The tensors for the arguments, by input name; pictures for one input are its rows, as BYTES [n].

    `metadata` is called only if a file does not say which input it is for. Raises `ConfigError`.
    """
    given = [one for text in texts for one in _read(text)]
    only: TensorSpec | None = None
    if any(not one.name for one in given):
        only = _only_input(metadata())
    arrays: dict[str, Array] = {}
    pictures: dict[str, list[bytes]] = {}
    for one in given:
        name = one.name or (only.name if only else "")
        if isinstance(one.value, bytes):
            if not one.name and only is not None and only.datatype != "BYTES":
                takes = f"{only.datatype} {list(only.shape)}"
                raise ConfigError.at(one.path, f"input {name!r} takes {takes}; expected a .npy or .npz file")
            pictures.setdefault(name, []).append(one.value)
        elif name in arrays:
            raise ConfigError.at(one.path, f"input {name!r} is repeated; put its rows into one array")
        else:
            arrays[name] = one.value
    for name, encoded in pictures.items():
        if name in arrays:
            raise ConfigError.at(None, f"input {name!r} is given both as an array and as a picture")
        arrays[name] = np.empty(len(encoded), dtype=np.object_)
        arrays[name][:] = encoded
    return arrays


def _only_input(metadata: ModelMetadata) -> TensorSpec:
    if len(metadata.inputs) == 1:
        return metadata.inputs[0]
    names = ", ".join(spec.name for spec in metadata.inputs)
    raise ConfigError.at(None, f"model {metadata.name!r} takes the inputs {names}: write NAME=FILE for each")


def _read(text: str) -> Iterator[_Given]:
    name, equals, file = text.partition("=")
    if not equals or os.path.exists(text):
        name, file = "", text
    path = Path(file)
    data = read_file(path, "the file", DEFAULT_MAX_MESSAGE_BYTES)
    if not data:
        raise ConfigError.at(path, "the file is empty")
    try:
        if path.suffix.lower() == ".npy":
            yield _Given(name, path, read_npy(io.BytesIO(data), len(data)))
        elif path.suffix.lower() == ".npz":
            if name:
                raise ConfigError.at(path, f"a .npz names its inputs itself; leave {name}= out")
            for array_name, array in read_npz(io.BytesIO(data), DEFAULT_MAX_MESSAGE_BYTES).items():
                yield _Given(array_name, path, array)
        else:
            yield _Given(name, path, data)
    except ValueError as error:
        raise ConfigError.at(path, f"not a NumPy file: {error}") from None

"""Reading weights from safetensors files: checks of the header, and mismatches with the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from upwell.cloud.engines.error_text import reason_of
from upwell.cloud.engines.trusted_files import steady
from upwell.cloud.repository.model_folders import why_not_this
from upwell.shared.errors import ModelFailed
from upwell.shared.files import open_plain

_LENGTH_BYTES = 8
_SHOWN = 5
_MOST_HEADER_BYTES = 16 << 20
"""Maximum size of a header, for about 100,000 tensors. The format allows 100 MB, which take many times as much memory
when parsed."""


@contextmanager
def open_weights(path: Path, framework: str) -> Iterator[Any]:
    """Open the file at `path` with safetensors for this framework. Raises `ModelFailed` for an unreadable file, also
    within the block.
    """
    try:
        check_header(path)
        with steady(path) as copy, safe_open(str(copy), framework=framework) as file:
            yield file
    except OSError as error:
        raise ModelFailed(f"{path.name} cannot be read: {error.strerror or reason_of(error)}") from error
    except SafetensorError as error:
        raise ModelFailed(f"{path.name} is not a readable safetensors file: {reason_of(error)}") from error


def check_header(path: Path) -> None:
    """Raise `ModelFailed` if the file is too short for its header, or the header is too large."""
    with open_plain(path) as file:
        announced = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    size = path.stat().st_size
    if size < _LENGTH_BYTES or announced > size - _LENGTH_BYTES:
        text = f"{path.name} is not a readable safetensors file: its header would take {announced} of {size} bytes"
        raise ModelFailed("; ".join(filter(None, (text, why_not_this(path)))))
    if announced > _MOST_HEADER_BYTES:
        raise ModelFailed(
            f"{path.name} has a header of {announced} bytes; at most {_MOST_HEADER_BYTES} are allowed, "
            "enough for about 100,000 tensors"
        )


def misfits(owner: str, expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """The weights of `owner` that a file lacks or has with another shape."""
    for name, shape in expected.items():
        if name not in found:
            yield f"{name} is missing"
        elif found[name] != shape:
            yield f"{name} has shape {list(found[name])}; the {owner} has {list(shape)}"


def refuse_misfits(path: Path, what: str, wrong: Sequence[str]) -> None:
    """Raise `ModelFailed` if there are problems with the weights in that file."""
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise ModelFailed(f"{path.name} does not fit {what}: {'; '.join(wrong[:_SHOWN])}{more}")

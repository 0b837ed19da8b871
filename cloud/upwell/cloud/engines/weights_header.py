"""The beginning of a safetensors file, which says how much there is to read."""

from __future__ import annotations

from pathlib import Path

from upwell.cloud.repository.formats import why_not_this
from upwell.shared.errors import ModelFailed
from upwell.shared.files import open_plain

_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 16 << 20
"""About 100,000 tensors. The format allows 100 MB, which take many times as much memory once they are read."""


def check_header(path: Path) -> None:
    """Raise `ModelFailed` where the file is too short for the header that it announces, or that is too large."""
    with open_plain(path) as file:
        announced = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    size = path.stat().st_size
    if size < _LENGTH_BYTES or announced > size - _LENGTH_BYTES:
        text = (
            f"{path.name} is not a readable safetensors file: it announces a header of {announced} bytes and has {size}"
        )
        raise ModelFailed("; ".join(filter(None, (text, why_not_this(path)))))
    if announced > _MOST_HEADER_BYTES:
        raise ModelFailed(
            f"{path.name} has a header of {announced} bytes; at most {_MOST_HEADER_BYTES} are read, "
            "which is enough for about 100,000 tensors"
        )

"""What ONNX Runtime says when it fails, as a person wants to read it."""

from __future__ import annotations

import re
from pathlib import Path

from upwell.cloud.engines.checks import printable

_READ = 4000
_BEGINNING, _END = 120, 220
_CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_FUNCTION = r"[\w:*&<>~, ]{0,200}::[\w~<>]+\((?:[^()]|\([^()]*\))*\)(?: const)? "
_PLACE = re.compile(rf"\S{{1,200}}\.(?:cc|h|cpp):\d{{1,6}} (?:{_FUNCTION})?")
"""Where in its own source it noticed: file and line, and the function with the types of its arguments."""


def told_by(error: BaseException, path: Path | None = None) -> str:
    """An error of ONNX Runtime without its code and the place in its source, on one line, for one line of a log.

    Long ones are cut in the middle: what was expected comes last. Of the model's `path` the name alone is left, since a
    caller need not know where models lie.
    """
    text = str(error)[:_READ]
    if path is not None:
        text = text.replace(f"Load model from {path} failed:", "").replace(str(path), path.name)
    plain = printable(" ".join(_PLACE.sub("", _CODE.sub("", text)).split())) or type(error).__name__
    return plain if len(plain) <= _BEGINNING + _END else f"{plain[:_BEGINNING]} … {plain[-_END:]}"

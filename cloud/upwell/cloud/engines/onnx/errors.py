"""Error messages of ONNX Runtime in readable form."""

from __future__ import annotations

import re
from pathlib import Path

from upwell.cloud.engines.checks import printable

_READ = 4000
_BEGINNING, _END = 120, 220
_CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_FUNCTION = r"[\w:*&<>~, ]{0,200}::[\w~<>]+\((?:[^()]|\([^()]*\))*\)(?: const)? "
_PLACE = re.compile(rf"\S{{1,200}}\.(?:cc|h|cpp):\d{{1,6}} (?:{_FUNCTION})?")
"""The position in ONNX Runtime's source: file and line, and the function with its argument types."""


def told_by(error: BaseException, path: Path | None = None) -> str:
    """An error of ONNX Runtime on one line, without its code and its position in the source.

    Long ones are shortened in the middle, since the expectation comes last. The model's `path` is reduced to its name,
    since callers need not know where models are.
    """
    text = str(error)[:_READ]
    if path is not None:
        text = text.replace(f"Load model from {path} failed:", "").replace(str(path), path.name)
    plain = printable(" ".join(_PLACE.sub("", _CODE.sub("", text)).split())) or type(error).__name__
    return plain if len(plain) <= _BEGINNING + _END else f"{plain[:_BEGINNING]} … {plain[-_END:]}"

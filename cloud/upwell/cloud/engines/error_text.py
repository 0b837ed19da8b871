"""Errors of frameworks as text for logs, statuses and callers: short, on one line, without paths of this machine."""

from __future__ import annotations

import re
from pathlib import Path

from upwell.shared.errors import shortened

_LONGEST_REASON = 300
_FOLDERS = re.compile(r"(?<![\w.:/-])/(?:[^\s/'\":,;()]+/)+")
"""Matches the folders of an absolute path, from its first slash to its last."""

_READ = 4000
_BEGINNING, _END = 120, 220
_CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_FUNCTION = r"[\w:*&<>~, ]{0,200}::[\w~<>]+\((?:[^()]|\([^()]*\))*\)(?: const)? "
_PLACE = re.compile(rf"\S{{1,200}}\.(?:cc|h|cpp):\d{{1,6}} (?:{_FUNCTION})?")
"""The position in ONNX Runtime's source: file and line, and the function with its argument types."""


def printable(text: str) -> str:
    """`text` on one line, with control characters escaped.

    Names of operators, tensors and files come from the model's author, and could otherwise forge log lines.
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def tellable(text: str) -> str:
    """`text` for callers, with paths on this machine reduced to their last name."""
    return printable(_FOLDERS.sub("", text))


def reason_of(error: BaseException) -> str:
    """The first line of a framework's error, short enough for a log line or a status."""
    text = str(error).strip()
    first = printable(text.splitlines()[0]) if text else type(error).__name__
    return shortened(first, _LONGEST_REASON)


def onnxruntime_reason(error: BaseException, path: Path | None = None) -> str:
    """An error of ONNX Runtime on one line, without its code and its position in the source.

    Long ones are shortened in the middle, since the expectation comes last. The model's `path` is reduced to its name,
    since callers need not know where models are.
    """
    text = str(error)[:_READ]
    if path is not None:
        text = text.replace(f"Load model from {path} failed:", "").replace(str(path), path.name)
    plain = printable(" ".join(_PLACE.sub("", _CODE.sub("", text)).split())) or type(error).__name__
    return plain if len(plain) <= _BEGINNING + _END else f"{plain[:_BEGINNING]} … {plain[-_END:]}"

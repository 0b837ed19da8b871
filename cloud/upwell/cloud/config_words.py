"""Words of `cloud.yaml` that have to be spelled in a certain way, and what is said where they are not."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from pydantic import AfterValidator


def _spelled(pattern: str, expected: str) -> AfterValidator:
    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(f"expected {expected}, got {text!r}")
        return text

    return AfterValidator(check)


Sha256: TypeAlias = Annotated[
    str,
    _spelled("[0-9a-f]{64}", "the SHA-256 of a file, 64 hex digits in small letters as `sha256sum FILE` prints them"),
]
Device: TypeAlias = Annotated[
    str, _spelled("[a-z]+(:[0-9]+)?", "a device in small letters, such as cpu, cuda, cuda:0, xpu or auto")
]
Provider: TypeAlias = Annotated[
    str, _spelled("[A-Za-z]{1,50}", "an execution provider of ONNX Runtime, such as cuda or CUDAExecutionProvider")
]
ClassName: TypeAlias = Annotated[
    str, _spelled(r"(([A-Za-z_]\w*\.)+[A-Za-z_]\w*)?", "a class with its module, such as mypackage.LargeNet")
]

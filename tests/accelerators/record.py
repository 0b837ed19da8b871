"""What a test has shown of an accelerator, for the matrix that `make test-accelerators` prints."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal

FILE_VARIABLE = "UPWELL_MATRIX"

Column = Literal["with", "executed", "placement", "agreement", "no device", "reload", "traps"]
"""`with`: packages and versions; `executed`: what ran; `placement`: the evidence of nodes; `agreement`: with the CPU;
`no device`: what is said without the device or library; `reload`: compiled ahead of time and loaded again; `traps`:
a silent failure that is detected (any number of them)."""


def record(accelerator: str, column: Column, said: str) -> None:
    """Say what was shown, after the asserts that show it. Goes nowhere outside `make test-accelerators`."""
    target = os.environ.get(FILE_VARIABLE)
    if target is None:
        return
    line = json.dumps({"accelerator": accelerator, "column": column, "said": said}, ensure_ascii=False)
    with Path(target).open("a", encoding="utf-8") as file:
        file.write(line + "\n")

"""The child process that opens a model and runs it once before the agent does: with an unknown library, or a new model
on the CPU.

It takes one JSON object on standard input (`path`, `options`, `accelerator`, `cache_dir`, `timeout_s`, `parent`) and
prints one on standard output: `{"refused": reason}`, the reason empty on success. It ends with its parent process (on
Linux), and after `timeout_s` at the latest, even if a library hangs.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from upwell.edge.runtimes.input_check import blank
from upwell.edge.runtimes.placement import AcceleratorNotUsable
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
from upwell.shared.errors import UpwellError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_PR_SET_PDEATHSIG = 1
_NICE = 5
"""Lowers the priority, so that the agent's requests come first on the CPU."""


def main() -> None:
    """Probe the subject given on standard input."""
    request = json.load(sys.stdin)
    _end_with(request["parent"])
    if hasattr(signal, "alarm"):
        signal.alarm(int(request["timeout_s"]) + 1)  # ends this process even while a library holds the GIL
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer = os.dup(1)
    os.dup2(2, 1)  # libraries print to standard output
    reason = probe(request)
    with os.fdopen(answer, "w", encoding="utf-8") as out:
        json.dump({"refused": reason}, out)
    # Some libraries crash when unloaded at the end of the process; the agent never unloads one.
    sys.stderr.flush()
    os._exit(0)


def probe(request: dict[str, Any]) -> str:
    """Open the model and run it once on zeros; returns why that was refused, or ""."""
    cache_dir, accelerator = request["cache_dir"], request["accelerator"]
    if accelerator is None and hasattr(os, "nice"):
        os.nice(_NICE)
    try:
        runtime = load_runtime(
            Path(request["path"]),
            RuntimeOptions.model_validate(request["options"]),
            None if accelerator is None else AcceleratorOptions.model_validate(accelerator),
            cache_dir=None if cache_dir is None else Path(cache_dir),
        )
        runtime.run({spec.name: blank(spec.datatype, spec.shape) for spec in runtime.inputs})
    except (AcceleratorNotUsable, UpwellError) as error:
        return str(error)
    return "" if accelerator is None else runtime.placement.reason


def _end_with(parent: int) -> None:
    """Ask the kernel to end this process when the waiting parent thread ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before this took effect
            os._exit(1)


if __name__ == "__main__":
    main()

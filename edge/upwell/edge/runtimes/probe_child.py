"""The process that opens a model and runs it once, so that the agent need not be the first: with an unknown library,
or a new model on the CPU.

It takes one JSON object on standard input (`path`, `options`, `accelerator`, `cache_dir`, `timeout_s`, `parent`) and
prints one on standard output: `{"refused": reason}`, the reason empty where all went well. It ends with its parent
process (on Linux), and after `timeout_s` at the latest, also where a library hangs.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from upwell.edge.runtimes.inputs import blank
from upwell.edge.runtimes.load import load_runtime
from upwell.edge.runtimes.options import AcceleratorOptions, RuntimeOptions
from upwell.edge.runtimes.placement import AcceleratorNotUsable
from upwell.shared.errors import UpwellError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_PR_SET_PDEATHSIG = 1
_NICE = 5
"""On the CPU the agent's requests go before."""


def main() -> None:
    """Probe as told on standard input."""
    request = json.load(sys.stdin)
    _end_with(request["parent"])
    if hasattr(signal, "alarm"):
        signal.alarm(int(request["timeout_s"]) + 1)  # ends this process even while a library keeps the GIL
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer = os.dup(1)
    os.dup2(2, 1)  # libraries print to standard output
    reason = probe(request)
    with os.fdopen(answer, "w", encoding="utf-8") as out:
        json.dump({"refused": reason}, out)
    # Some libraries crash when they are unloaded at the end of the process; the agent never unloads one.
    sys.stderr.flush()
    os._exit(0)


def probe(request: dict[str, Any]) -> str:
    """Open the model and run it once on zeros; why that was refused, or nothing."""
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
    """Be ended by the kernel when the thread that waits for this process ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended before that was said
            os._exit(1)


if __name__ == "__main__":
    main()

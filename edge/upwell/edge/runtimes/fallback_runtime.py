"""A model on an accelerator that goes on with the CPU when the accelerator fails while running."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from upwell.edge.runtimes.base import Runtime
from upwell.edge.runtimes.placement import AcceleratorFailed
from upwell.shared.errors import ConfigError, ModelFailed
from upwell.shared.tensors import Array

_log = logging.getLogger(__name__)


class FallbackRuntime:
    """A model on an accelerator that never loses an answer: a run that fails there is repeated on the CPU.

    If the CPU answers, the accelerator was at fault: the model then stays on the CPU, and `placement.reason` says so.
    If the CPU fails too, the request was at fault: the error is raised, and the accelerator stays in use.
    """

    def __init__(self, path: Path, accelerated: Runtime, open_on_cpu: Callable[[], Runtime]) -> None:
        self.name, self.version = accelerated.name, accelerated.version
        self.inputs, self.outputs = accelerated.inputs, accelerated.outputs
        self.instances = accelerated.instances
        self.placement = accelerated.placement
        self._path = path
        self._open_on_cpu = open_on_cpu
        self._runtime = accelerated
        self._lock = threading.Lock()
        self._is_closed = False

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model once; see `Runtime.run`."""
        runtime = self._runtime
        try:
            return runtime.run(inputs)
        except AcceleratorFailed as failure:
            with self._lock:
                if self._is_closed:
                    raise
                if self._runtime is runtime:
                    return self._leave_accelerator(inputs, failure)
        return self._runtime.run(inputs)

    def close(self) -> None:
        """Free the model; see `Runtime.close`."""
        with self._lock:
            self._is_closed = True
            self._runtime.close()

    def _leave_accelerator(self, inputs: Mapping[str, Array], failure: AcceleratorFailed) -> dict[str, Array]:
        try:
            on_cpu = self._open_on_cpu()
        except ConfigError as error:
            raise ModelFailed(f"the model cannot be reopened after a failure: {error}") from None
        try:
            answer = on_cpu.run(inputs)
        except BaseException:
            on_cpu.close()
            raise
        reason = f"{self.placement.accelerator} failed while running; the model continues on the CPU: {failure}"
        _log.warning("%s: %s", self._path, reason)
        # The accelerator's runtime is freed after its last run.
        self._runtime = on_cpu
        self.placement = replace(self.placement, nodes_on_accelerator=0, left_on_cpu=(), reason=reason)
        return answer

"""A model on an accelerator that goes on with the CPU when the accelerator fails while running."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from upwell.edge.runtimes.base import Runtime, Shapes
from upwell.edge.runtimes.input_check import blank, run_on_zeros
from upwell.edge.runtimes.placement import AcceleratorFailed
from upwell.shared.errors import ConfigError, ModelFailed, UpwellError
from upwell.shared.tensors import Array

_MOST_REFUSED = 256
_log = logging.getLogger(__name__)


class FallbackRuntime:
    """A model on an accelerator that never loses an answer: a run that fails there is repeated on the CPU.

    If the CPU fails too, the request was at fault: the error is raised, and the accelerator stays in use. If the CPU
    answers, the accelerator was. Where it refuses inputs of these shapes, or fails for any (more rows than its memory
    holds, say), but still runs the model's smallest ones, inputs of these shapes run on the CPU from then on and all
    others stay. Else the model stays on the CPU. `placement` says which, and why.
    """

    def __init__(self, path: Path, accelerated: Runtime, open_on_cpu: Callable[[], Runtime]) -> None:
        self.name, self.version = accelerated.name, accelerated.version
        self.inputs, self.outputs = accelerated.inputs, accelerated.outputs
        self.instances = accelerated.instances
        self.placement = accelerated.placement
        self._path = path
        self._open_on_cpu = open_on_cpu
        self._runtime = accelerated
        self._on_cpu: Runtime | None = None
        self._refused: frozenset[Shapes] = frozenset()
        self._lock = threading.Lock()
        self._is_closed = False

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model once; see `Runtime.run`."""
        if self._refused and self._on_cpu is not None and self._shapes(inputs) in self._refused:
            return self._on_cpu.run(inputs)
        runtime = self._runtime
        try:
            return runtime.run(inputs)
        except AcceleratorFailed as failure:
            with self._lock:
                if self._is_closed:
                    raise
                if self._runtime is runtime and self._shapes(inputs) not in self._refused:
                    return self._run_on_cpu(inputs, failure)
        return self.run(inputs)  # meanwhile another run has found out where it belongs

    def close(self) -> None:
        """Free the model; see `Runtime.close`."""
        with self._lock:
            self._is_closed = True
            self._runtime.close()
            if self._on_cpu is not None:
                self._on_cpu.close()

    def _run_on_cpu(self, inputs: Mapping[str, Array], failure: AcceleratorFailed) -> dict[str, Array]:
        on_cpu = self._on_cpu
        if on_cpu is None:
            try:
                on_cpu = self._open_on_cpu()
            except ConfigError as error:
                raise ModelFailed(f"the model cannot be reopened after a failure: {error}") from None
        try:
            answer = on_cpu.run(inputs)
        except BaseException:
            if self._on_cpu is None:
                on_cpu.close()
            raise
        self._on_cpu = on_cpu
        self._leave_accelerator(self._shapes(inputs), on_cpu, failure)
        return answer

    def _leave_accelerator(self, shapes: Shapes, on_cpu: Runtime, failure: AcceleratorFailed) -> None:
        """Run inputs of these shapes on the CPU from now on, or all inputs."""
        provider = self.placement.accelerator
        if self._refuses(shapes, failure):
            sizes = ", ".join(f"{spec.name!r} {list(shape)}" for spec, shape in zip(self.inputs, shapes, strict=True))
            reason = f"{provider} refuses {sizes}, which the CPU runs: {failure}"
            placement = replace(self.placement, reason=reason, refused=self.placement.refused | {shapes})
        else:
            reason = f"{provider} failed while running; the model continues on the CPU: {failure}"
            # The accelerator's runtime is freed after its last run.
            self._runtime = on_cpu
            placement = replace(
                self.placement, nodes_on_accelerator=0, left_on_cpu=(), reason=reason, refused=frozenset()
            )
        _log.warning("%s: %s", self._path, reason)
        self.placement, self._refused = placement, placement.refused

    def _refuses(self, shapes: Shapes, failure: AcceleratorFailed) -> bool:
        """Whether the accelerator fails because of the shapes, and it is worth keeping for others."""
        smallest = tuple(tuple(1 if size < 0 else size for size in spec.shape) for spec in self.inputs)
        if failure.is_of_shapes is False or shapes == smallest or len(self._refused) >= _MOST_REFUSED:
            return False
        try:
            run_on_zeros(self._runtime)
        except UpwellError:
            return False
        return failure.is_of_shapes or not self._runs(shapes)

    def _runs(self, shapes: Shapes) -> bool:
        """Whether the accelerator runs zeros of these shapes."""
        pairs = zip(self.inputs, shapes, strict=True)
        try:
            self._runtime.run({spec.name: blank(spec.datatype, shape) for spec, shape in pairs})
        except UpwellError:
            return False
        return True

    def _shapes(self, inputs: Mapping[str, Array]) -> Shapes:
        """The shapes of inputs; of ones that are no arrays, none that the model takes."""
        return tuple([getattr(inputs.get(spec.name), "shape", (-1,)) for spec in self.inputs])

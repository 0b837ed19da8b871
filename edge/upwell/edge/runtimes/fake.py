"""The official fake runtime: a Python function behind the `Runtime` interface."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from upwell.edge.runtimes.base import Placement
from upwell.edge.runtimes.input_check import InputCheck
from upwell.shared.errors import InvalidRequest, ModelFailed
from upwell.shared.tensors import Array, TensorSpec


@dataclass
class Behaviour:
    """The behaviour of each run of a fake; it may be changed between runs.

    A run waits for `gate` to be set (if given), takes `latency_s`, then raises `ModelFailed` with the text `failure`
    (if given) or answers.
    """

    latency_s: float = 0.0
    failure: str = ""
    gate: threading.Event | None = None


class FakeRuntime:
    """Runs `function` as the model, up to `instances` runs at once.

    `runs` counts the runs started with valid inputs.
    """

    name: str = "fake"
    version: str = "fake 1"

    def __init__(
        self,
        function: Callable[[Mapping[str, Array]], Mapping[str, Array]],
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        *,
        behaviour: Behaviour | None = None,
        placement: Placement | None = None,
        instances: int = 1,
    ) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.placement = placement or Placement()
        self.behaviour = behaviour or Behaviour()
        self.instances = instances
        self.runs = 0
        self._function = function
        self._check = InputCheck(self.inputs)
        self._count = threading.Lock()
        self._places = threading.BoundedSemaphore(instances)
        self._closed = False

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the function once; see `Runtime.run`."""
        if self._closed:
            raise ModelFailed("the fake model is closed")
        self._check(inputs)
        mismatch = self._check.mismatch(inputs)
        if mismatch:
            raise InvalidRequest(mismatch)
        with self._places:
            return self._run_now(inputs)

    def _run_now(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        behaviour = self.behaviour
        with self._count:
            self.runs += 1
        if behaviour.gate is not None:
            behaviour.gate.wait()
        if behaviour.latency_s:
            time.sleep(behaviour.latency_s)
        if behaviour.failure:
            raise ModelFailed(behaviour.failure)
        try:
            answer = self._function(inputs)
            return {spec.name: np.array(answer[spec.name]) for spec in self.outputs}
        except Exception as error:  # a model may fail in any way
            raise ModelFailed(f"the fake model failed: {error}") from error

    def close(self) -> None:
        """Free nothing; see `Runtime.close`."""
        self._closed = True

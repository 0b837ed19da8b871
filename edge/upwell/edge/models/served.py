"""One model as the agent serves it: its edge side, its cloud side, or both."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from upwell.edge.lane import Lane
from upwell.edge.request_log import runtime_name
from upwell.edge.runtimes.base import Runtime
from upwell.edge.scoring import Scorer
from upwell.edge.timetable import Claim
from upwell.shared.errors import ModelFailed
from upwell.shared.routing.settings import Identity
from upwell.shared.signature.processor import Processor
from upwell.shared.signature.signature import Signature
from upwell.shared.tensors import Array, numpy_dtype

_ANY = Claim()
_BFLOAT16 = numpy_dtype("BF16")  # of numpy's kind V, not f


class NotFinite(ModelFailed):
    """Scores that are no finite numbers."""


@dataclass(frozen=True)
class EdgeRun:
    """Outputs by logical name, and the time that pre-processing, the model and post-processing took together."""

    outputs: Mapping[str, Array]
    duration_s: float


class EdgeModel:
    """A model on the device: runtime, signature, how its answers are measured, and the lane that its runs share."""

    def __init__(self, runtime: Runtime, processor: Processor, digest: str, *, is_described: bool) -> None:
        self.runtime = runtime
        self.is_described = is_described
        self.processor = processor
        self.digest = digest
        self.lane = Lane()
        self.scorer = Scorer(processor.signature)

    @property
    def signature(self) -> Signature:
        """What callers see."""
        return self.processor.signature

    def run(self, inputs: Mapping[str, Array], deadline_s: float, claim: Claim = _ANY) -> EdgeRun:
        """Answer checked inputs on the device, in the caller's thread.

        Raises `Refused`, `Superseded` and `DeadlineExceeded` as `Lane.turn` does, `InvalidRequest` for a picture that
        cannot be read and `ModelFailed` where the runtime fails.
        """
        with self.lane.turn(deadline_s, claim):
            started_s = time.monotonic()
            prepared = self.processor.pre(inputs)
            outputs: Mapping[str, Array] = self.processor.run_rows(self.runtime.run, prepared)
            if not self.processor.identity:
                outputs = self.processor.post(outputs, prepared)
            return EdgeRun(outputs, time.monotonic() - started_s)

    def check_cloud(self, outputs: Mapping[str, Array], rows: int) -> None:
        """Raise `ModelFailed` (`NotFinite`) unless the cloud's outputs are what the signature promises for `rows` rows.

        Floats must be finite, except in outputs that `model.yaml` declares as plain tensors.
        """
        self.signature.check_outputs(outputs, rows)
        for output in self.signature.outputs:
            array = outputs[output.name]
            may_be_any = self.is_described and output.kind == "tensor"
            is_float = array.dtype.kind == "f" or array.dtype == _BFLOAT16
            if is_float and not may_be_any and not np.isfinite(array).all():
                raise NotFinite(f"output {output.name!r} holds values that are not finite")

    def close(self) -> None:
        """Free the runtime."""
        self.runtime.close()


@dataclass(frozen=True)
class ServedModel:
    """A model by the name its callers use; `cloud_model` is its name up there, empty without a cloud side."""

    name: str
    edge: EdgeModel | None
    cloud_model: str = ""

    @property
    def identity(self) -> Identity:
        """What calibrations go by; the cloud's digest is learnt from its answers."""
        return Identity() if self.edge is None else Identity(self.edge.digest, runtime_name(self.edge.runtime))

"""One model as the agent serves it: its edge side, its cloud side, or both."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from upwell.edge.bundle.base import Bundle
from upwell.edge.lane import Lane
from upwell.edge.models.report import LoadReport, State
from upwell.edge.models.trial import Trial
from upwell.edge.request_log import runtime_name
from upwell.edge.runtimes.base import Runtime
from upwell.edge.runtimes.device_lock import DeviceLock
from upwell.edge.scoring import Scorer
from upwell.edge.timetable import Claim
from upwell.shared.errors import ModelFailed
from upwell.shared.routing.calibrations import Calibration
from upwell.shared.routing.settings import Identity
from upwell.shared.signature.processor import Processor
from upwell.shared.signature.signature import Signature
from upwell.shared.tensors import Array, numpy_dtype

_ANY = Claim()
_NO_REPORT = LoadReport()
_BFLOAT16 = numpy_dtype("BF16")  # of numpy's kind V, not f


class NotFinite(ModelFailed):
    """Scores that are no finite numbers."""


@dataclass(frozen=True)
class EdgeRun:
    """Outputs by logical name, the time that pre-processing, the model and post-processing took, and what ran it."""

    outputs: Mapping[str, Array]
    duration_s: float
    digest: str = ""


class EdgeModel:
    """A model on the device: runtime, signature, how its answers are measured, and the lane that its runs share."""

    def __init__(
        self,
        runtime: Runtime,
        processor: Processor,
        digest: str,
        *,
        is_described: bool,
        report: LoadReport = _NO_REPORT,
        bundle: Bundle | None = None,
        calibrations: Sequence[Calibration] = (),
    ) -> None:
        self.runtime = runtime
        self.is_described = is_described
        self.processor = processor
        self.digest = digest
        self.report = report
        self.bundle = bundle
        """What it came from; None for a bare file."""
        self.calibrations = calibrations
        """Those that came with it."""
        self.durations_s: Sequence[float] = ()
        """Of runs of one row before it was served."""
        self.lane = Lane(runtime.instances)
        """Taken over from the version before, so that the device's runs go on in turn during a switch."""
        self.trial: Trial[EdgeRun] | None = None
        """Set while a new version has yet to prove itself."""
        self.device_lock: DeviceLock | None = None
        """Held while the accelerator's device is open."""
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
            trial = self.trial
            if trial is None:
                return self.run_now(inputs)
            if trial.is_proven:
                self.trial = None  # and with it the former version's memory
            return trial.run(self.run_now, inputs)

    def run_now(self, inputs: Mapping[str, Array]) -> EdgeRun:
        """`run` beside the lane: for tests and warm-up, before the model is served."""
        started_s = time.monotonic()
        prepared = self.processor.pre(inputs)
        outputs: Mapping[str, Array] = self.processor.run_rows(self.runtime.run, prepared)
        if not self.processor.identity:
            outputs = self.processor.post(outputs, prepared)
        return EdgeRun(outputs, time.monotonic() - started_s, self.digest)

    @property
    def accelerator(self) -> str:
        """What runs nodes of it, by the evidence; empty for the CPU."""
        placement = self.runtime.placement
        return placement.accelerator if placement.nodes_on_accelerator else ""

    @property
    def state(self) -> State:
        """`fallback` too where an accelerator was lost since the model was loaded."""
        return "fallback" if self.report.state == "ready" and self.runtime.placement.reason else self.report.state

    def facts(self, digest: str = "") -> dict[str, str]:
        """What an answer says of the device's part; `digest` names the version that ran where it was another."""
        return {
            "edge_digest": digest or self.digest,
            "accelerator": self.accelerator or "cpu",
            "edge_state": self.state,
        }

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
        """Free the runtime, and then the device."""
        self.runtime.close()
        if self.device_lock is not None:
            self.device_lock.release()


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

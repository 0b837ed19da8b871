"""One model as the agent serves it: its edge side, its cloud side, or both."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from upwell.edge.admission.schedulability import RunRequest
from upwell.edge.admission.scheduler import EdfScheduler
from upwell.edge.bundle.base import Bundle
from upwell.edge.models.report import LoadReport, State
from upwell.edge.models.scoring import Scorer
from upwell.edge.models.trial import Trial
from upwell.edge.observe.request_log import runtime_name
from upwell.edge.runtimes.base import Runtime
from upwell.edge.runtimes.device_lock import DeviceLock
from upwell.shared.errors import ConfigError, ModelFailed
from upwell.shared.routing.policy.calibrations import Calibration
from upwell.shared.routing.policy.settings import HardSettings, ModelPair
from upwell.shared.signature.processor import Prepared, Processor
from upwell.shared.signature.signature import Signature
from upwell.shared.tensors import Array, TensorSpec, numpy_dtype

if TYPE_CHECKING:
    from upwell.edge.models.heads import Head
    from upwell.edge.updates.comparing import Versions
from upwell.shared.values import quick

_ANY = RunRequest()
_NO_REPORT = LoadReport()
_BFLOAT16 = numpy_dtype("BF16")  # of numpy's kind V, not f


class NotFinite(ModelFailed):
    """Scores that are no finite numbers."""


@quick
@dataclass(frozen=True, slots=True)
class EdgeRun:
    """Outputs by logical name, the time that pre-processing, the model and post-processing took, and what ran it."""

    outputs: Mapping[str, Array]
    duration_s: float
    digest: str = ""
    exits: Mapping[str, Array] | None = None
    """Of a head that answers early: what its tail takes."""


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
        exits: Collection[str] = (),
    ) -> None:
        self.runtime = runtime
        self.is_described = is_described
        self.processor = processor
        self.exits = _specs(processor.signature, exits)
        """Of a head that answers early: what goes up to its tail. Callers do not see it."""
        outputs = tuple(output for output in processor.signature.outputs if output.name not in exits)
        self.signature = replace(processor.signature, outputs=outputs) if exits else processor.signature
        """What callers see."""
        self.pictures = frozenset(one.name for one in processor.signature.inputs if one.kind == "image")
        """The inputs that take encoded pictures."""
        self.digest = digest
        self.report = report
        self.bundle = bundle
        """What it came from; None for a bare file."""
        self.calibrations = calibrations
        """Those that came with it."""
        self.durations_s: Sequence[float] = ()
        """Of runs of one row before it was served."""
        self.heads: tuple[Head, ...] | None = None
        """Those of its bundle; None where heads do not change with the version."""
        self.scheduler = EdfScheduler(runtime.instances)
        """Taken over from the version before, so that the device's runs go on in turn during a switch."""
        self.trial: Trial[EdgeRun] | None = None
        """Set while a new version has yet to prove itself."""
        self.versions: Versions | None = None
        """How it compares with the one before meanwhile."""
        self.device_lock: DeviceLock | None = None
        """Held while the accelerator's device is open."""
        self.scorer = Scorer(self.signature)
        self._scores: tuple[object, bool] = ((), False)

    def run(self, inputs: Mapping[str, Array], deadline_s: float, run_request: RunRequest = _ANY) -> EdgeRun:
        """Answer inputs that passed `signature.check_inputs` on the device, in the caller's thread.

        Raises `Refused`, `Superseded` and `DeadlineExceeded` as `EdfScheduler.turn` does, `InvalidRequest` for a
        picture that cannot be read and `ModelFailed` where the runtime fails.
        """
        with self.scheduler.turn(deadline_s, run_request):
            trial = self.trial
            if trial is None:
                return self._run_checked(inputs)
            if trial.is_proven:
                self.trial = self.versions = None  # and with them the former version's memory
            return trial.run(self.run_now, inputs)

    def run_now(self, inputs: Mapping[str, Array]) -> EdgeRun:
        """`run` beside the lane: for tests and warm-up, before the model is served."""
        self.signature.check_inputs(inputs)
        return self._run_checked(inputs)

    def _run_checked(self, inputs: Mapping[str, Array]) -> EdgeRun:
        started_s, processor = time.monotonic(), self.processor
        if processor.identity:  # nothing to prepare, and the inputs need not be checked twice
            rows = next(iter(inputs.values())).shape[0] if self.signature.has_rows else 1
            if processor.chunk in (0, rows):
                outputs = self.runtime.run(inputs)
            else:
                outputs = processor.run_rows(self.runtime.run, Prepared(inputs, rows, None))
        else:
            prepared = processor.pre(inputs)
            outputs = processor.post(processor.run_rows(self.runtime.run, prepared), prepared)
        if not self.exits:
            return EdgeRun(outputs, time.monotonic() - started_s, self.digest)
        exits = {spec.name: outputs[spec.name] for spec in self.exits}
        answer = {output.name: outputs[output.name] for output in self.signature.outputs}
        return EdgeRun(answer, time.monotonic() - started_s, self.digest, exits)

    @property
    def exit_row_bytes(self) -> int:
        """What one row of the exits takes on the wire."""
        dims = {spec: [max(1, dim) for dim in spec.shape[1:]] for spec in self.exits}  # an open one is not known before
        return sum(numpy_dtype(spec.datatype).itemsize * math.prod(each) for spec, each in dims.items())

    def can_score(self, hards: Collection[HardSettings]) -> bool:
        """Whether its outputs can be measured in any of these ways; of the same object it is not found out twice."""
        asked, can = self._scores
        if asked is not hards:
            can = any(map(self.scorer.can, hards))
            self._scores = hards, can
        return can

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
        placement = self.runtime.placement
        state: State = self.report.state
        return {
            "edge_digest": digest or self.digest,
            "accelerator": (placement.nodes_on_accelerator and placement.accelerator) or "cpu",
            "edge_state": "fallback" if state == "ready" and placement.reason else state,
        }

    def check_cloud(self, outputs: Mapping[str, Array], rows: int) -> None:
        """Raise `ModelFailed` (`NotFinite`) unless the cloud's outputs are what the signature promises for `rows` rows.

        Floats must be finite, except in outputs that `model.yaml` declares as plain tensors.
        """
        self.signature.check_outputs(outputs, rows)
        name = self.not_finite(outputs)
        if name:
            raise NotFinite(f"output {name!r} holds values that are not finite")

    def not_finite(self, outputs: Mapping[str, Array]) -> str:
        """The first output that holds floats that are not finite, though they must be; empty where there is none."""
        for output in self.signature.outputs:
            array = outputs[output.name]
            may_be_any = self.is_described and output.kind == "tensor"
            is_float = array.dtype.kind == "f" or array.dtype == _BFLOAT16
            if is_float and not may_be_any and not np.isfinite(array).all():
                return output.name
        return ""

    def close(self) -> None:
        """Free the runtime, and then the device."""
        self.runtime.close()
        if self.device_lock is not None:
            self.device_lock.release()


def _specs(signature: Signature, names: Collection[str]) -> tuple[TensorSpec, ...]:
    """The outputs of these names. Raises `ConfigError` for one that the model does not have."""
    known = {output.name: output.spec for output in signature.outputs}
    missing = sorted(set(names) - set(known))
    if missing or (names and len(names) == len(known)):
        problem = f"there is no output {missing[0]!r}" if missing else "nothing is left to answer with"
        raise ConfigError.at(None, f"{problem}; the model gives {', '.join(known)}", "edge.exits")
    return tuple(known[name] for name in names)


@dataclass(frozen=True)
class ServedModel:
    """A model by the name its callers use; `cloud_model` is its name up there, empty without a cloud side.

    `heads` are the cuts at which it can be split. `whole` is the name of the model of which this is the tail of a cut.
    """

    name: str
    edge: EdgeModel | None
    cloud_model: str = ""
    heads: tuple[Head, ...] = ()
    whole: str = ""

    @property
    def entry_model(self) -> EdgeModel | None:
        """What knows the inputs that callers send: the whole on the device, or a head; None where only the cloud."""
        if self.edge is not None or not self.heads:
            return self.edge
        return next((head.edge for head in self.heads if head.edge.signature.has_rows), self.heads[0].edge)

    def head(self, key: str) -> Head:
        """The head of a way."""
        return next(head for head in self.heads if head.way.key == key)

    @property
    def model_pair(self) -> ModelPair:
        """What calibrations go by; the cloud's digest is learnt from its answers."""
        return ModelPair() if self.edge is None else ModelPair(self.edge.digest, runtime_name(self.edge.runtime))

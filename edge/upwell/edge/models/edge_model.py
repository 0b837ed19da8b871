"""A model on the device, whole or the head of a cut: how it runs, and what its answers are checked against."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from upwell.edge.admission.scheduler import EdfScheduler
from upwell.edge.bundle.base import Bundle
from upwell.edge.models.report import LoadReport, State
from upwell.edge.models.scoring import Scorer
from upwell.edge.models.trial import Comparison, Trial
from upwell.edge.runtimes.base import Runtime
from upwell.edge.runtimes.device_lock import DeviceLock
from upwell.shared.errors import ConfigError, ModelFailed
from upwell.shared.partition.split.folder import CutFacts
from upwell.shared.routing.decide.state import SplitRoute
from upwell.shared.routing.drift.reference import DriftReference
from upwell.shared.routing.policy.calibrations import Calibration
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.routing.scheduling.run_request import RunRequest
from upwell.shared.signature.binding import chunk_of, sizes_fit
from upwell.shared.signature.processor import CandidatesByOutput, Prepared, Processor
from upwell.shared.signature.signature import Signature
from upwell.shared.tensors import Array, TensorSpec, is_float, numpy_dtype
from upwell.shared.values import quick

_ANY = RunRequest()
_NO_REPORT = LoadReport()


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
    candidates: CandidatesByOutput | None = None
    """Of outputs of detections: what each row could have held."""


class VersionComparison(Comparison["EdgeRun"], Protocol):
    """How a version on trial compares with the one before. Safe to use from many threads."""

    def wants_audit(self) -> bool:
        """Whether one more answer is to be held against the cloud's."""

    def audit(self, edge: EdgeModel, inputs: Mapping[str, Array], send: Callable[[str], None]) -> bool:
        """Have the version before answer an audit, too, beside the requests; then `send` with its name."""

    def audited(self, name: str, cloud: Mapping[str, Array]) -> None:
        """The cloud has answered the audit of that name."""


@dataclass(frozen=True)
class ModelSource:
    """What a model on the device was loaded from: its file by the digest, the bundle, None for a bare file, and what
    came with it: calibrations, and what its rows were like."""

    digest: str
    bundle: Bundle | None = None
    calibrations: Sequence[Calibration] = ()
    reference: DriftReference | None = None

    @property
    def version(self) -> int:
        """Of the bundle; 0 without one."""
        return 0 if self.bundle is None else self.bundle.version


class EdgeModel:
    """A model on the device: runtime, signature, how its answers are measured, its scheduler.

    `exits` are the outputs that go up to a tail; of an accelerator's device `device_lock` is held while it is open.
    """

    def __init__(
        self,
        runtime: Runtime,
        processor: Processor,
        source: ModelSource,
        *,
        report: LoadReport = _NO_REPORT,
        exits: Collection[str] = (),
        device_lock: DeviceLock | None = None,
    ) -> None:
        self.runtime = runtime
        self.processor = processor
        self.exits = _specs(processor.signature, exits)
        """Of a head that answers early: what goes up to its tail. Callers do not see it."""
        outputs = tuple(output for output in processor.signature.outputs if output.name not in exits)
        self.signature = replace(processor.signature, outputs=outputs) if exits else processor.signature
        """What callers see."""
        self.pictures = frozenset(one.name for one in processor.signature.inputs if one.kind == "image")
        """The inputs that take encoded pictures."""
        self.source = source
        self.digest = source.digest
        self.report = report
        self.durations_s: Sequence[float] = ()
        """Of runs of one row before it was served."""
        self.heads: tuple[Head, ...] | None = None
        """Those of its bundle; None where heads do not change with the version."""
        self.scheduler = EdfScheduler(runtime.instances)
        """Taken over from the version before, so that the device's runs go on in turn during a switch."""
        self.trial: Trial[EdgeRun] | None = None
        """Set while a new version has yet to prove itself."""
        self.versions: VersionComparison | None = None
        """How it compares with the one before meanwhile."""
        self._device_lock = device_lock
        if device_lock is not None:
            weakref.finalize(self, device_lock.release)
        self.scorer = Scorer(self.signature)
        self._scores: tuple[object, bool] = ((), False)

    def run(self, inputs: Mapping[str, Array], deadline_s: float, run_request: RunRequest = _ANY) -> EdgeRun:
        """Answer inputs that passed `signature.check_inputs` on the device, in the caller's thread.

        Raises `Refused`, `Superseded` and `DeadlineExceeded` as `EdfScheduler.acquire` does, `InvalidRequest` for a
        picture that cannot be read and `ModelFailed` where the runtime fails.
        """
        with self.scheduler.acquire(deadline_s, run_request):
            trial = self.trial
            if trial is None:
                return self._run_checked(inputs)
            if trial.is_proven:
                self.trial = self.versions = None  # and with them the former version's memory
            return trial.run(self.run_now, inputs, deadline_s)

    def run_now(self, inputs: Mapping[str, Array]) -> EdgeRun:
        """`run` beside the scheduler: for tests and warm-up, before the model is served."""
        self.signature.check_inputs(inputs)
        return self._run_checked(inputs)

    def _run_checked(self, inputs: Mapping[str, Array]) -> EdgeRun:
        started_s, processor = time.monotonic(), self.processor
        candidates: CandidatesByOutput | None = None
        if processor.identity:  # nothing to prepare, and the inputs need not be checked twice
            rows = next(iter(inputs.values())).shape[0] if self.signature.has_rows else 1
            if processor.chunk in (0, rows):
                outputs = self.runtime.run(inputs)
            else:
                outputs = processor.run_rows(self.runtime.run, Prepared(inputs, rows, None))
        else:
            prepared = processor.pre(inputs)
            made = processor.run_rows(self.runtime.run, prepared)
            outputs, candidates = processor.post_with_candidates(made, prepared)
        if not self.exits:
            return EdgeRun(outputs, time.monotonic() - started_s, self.digest, None, candidates)
        exits = {spec.name: outputs[spec.name] for spec in self.exits}
        answer = {output.name: outputs[output.name] for output in self.signature.outputs}
        return EdgeRun(answer, time.monotonic() - started_s, self.digest, exits, candidates)

    @property
    def exit_row_bytes(self) -> int:
        """What one row of the exits takes on the wire."""
        return sum(map(row_bytes, self.exits))

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
            may_be_any = self.processor.is_described and output.kind == "tensor"
            if is_float(array.dtype) and not may_be_any and not np.isfinite(array).all():
                return output.name
        return ""

    def close(self) -> None:
        """Free the runtime, and then the device."""
        self.runtime.close()
        if self._device_lock is not None:
            self._device_lock.release()


def row_bytes(spec: TensorSpec) -> int:
    """What one row of a tensor takes; a dimension that varies counts as 1, since it is not known before."""
    return numpy_dtype(spec.datatype).itemsize * math.prod(max(1, dim) for dim in spec.shape[1:])


def _specs(signature: Signature, names: Collection[str]) -> tuple[TensorSpec, ...]:
    """The outputs of these names. Raises `ConfigError` for one that the model does not have."""
    known = {output.name: output.spec for output in signature.outputs}
    missing = sorted(set(names) - set(known))
    if missing or (names and len(names) == len(known)):
        problem = f"there is no output {missing[0]!r}" if missing else "nothing is left to answer with"
        raise ConfigError.at(None, f"{problem}; the model gives {', '.join(known)}", "edge.exits")
    return tuple(known[name] for name in names)


@dataclass(frozen=True)
class FullModel:
    """What the device knows of the model that was split, where that is the one it runs itself."""

    processor: Processor
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def post(self, outputs: Mapping[str, Array], prepared: Prepared) -> Mapping[str, Array]:
        """The outputs of the signature from the model's own, which came from elsewhere. Raises `ModelFailed`."""
        for spec in self.outputs:
            array = outputs.get(spec.name)
            if array is None or array.dtype != numpy_dtype(spec.datatype):
                raise ModelFailed(f"head and tail do not give {spec.name!r} as {spec.datatype}")
            if not sizes_fit(array.shape[1:], spec.shape[1:]):
                raise ModelFailed(f"head and tail give {spec.name!r} as {list(array.shape)}, not {list(spec.shape)}")
        return self.processor.post(outputs, prepared)


@dataclass(frozen=True)
class HeadOutput:
    """What a head gave: what its tail takes, by name, and how the tail's answer becomes that of the whole."""

    tensors: Mapping[str, Array]
    duration_s: float
    made: Mapping[str, Array]
    whole: FullModel | None = None
    prepared: Prepared | None = None

    def joined(self, outputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """The whole's outputs, from those of the tail. Raises `ModelFailed` where the tail's are wrong."""
        both = {**self.made, **outputs} if self.made else outputs
        if self.whole is None or self.prepared is None:
            return both
        return self.whole.post(both, self.prepared)


@dataclass(frozen=True)
class Head:
    """One cut: the head as a model on the device, and what the router and the cloud know its tail by."""

    cut: CutFacts
    edge: EdgeModel
    split_route: SplitRoute
    whole: FullModel | None = None

    def takes(self, rows: int) -> bool:
        """Whether it can run so many rows at once, as its tail must, too."""
        return rows == 1 or self.edge.signature.has_rows or not chunk_of(self.edge.runtime.inputs)

    def run(self, inputs: Mapping[str, Array], deadline_s: float, run_request: RunRequest) -> HeadOutput:
        """Run it on inputs of the whole that were checked. Raises as `EdgeModel.run` does."""
        taken = self.edge.signature.inputs
        own = inputs if len(taken) == len(inputs) else {one.name: inputs[one.name] for one in taken}
        run = self.edge.run(own, deadline_s, run_request)
        tensors = {tensor.name: run.outputs[tensor.name] for tensor in self.cut.tensors}
        made = {name: run.outputs[name] for name in self.cut.outputs}
        if not (self.cut.raw_inputs or self.cut.needs_post):
            return HeadOutput(tensors, run.duration_s, made)
        prepared = self.edge.processor.pre(own) if self.whole is None else self.whole.processor.pre(inputs)
        tensors.update({name: prepared.tensors[name] for name in self.cut.raw_inputs})
        return HeadOutput(tensors, run.duration_s, made, self.whole if self.cut.needs_post else None, prepared)

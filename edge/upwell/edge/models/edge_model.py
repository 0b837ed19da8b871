"""A model on the device, whole or the head of a cut: running it, checking its answers, and how it was loaded."""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import numpy as np

from upwell.edge.admission.edf_scheduler import EdfScheduler
from upwell.edge.bundle.bundle import Bundle
from upwell.edge.models.hardness_scorer import Scorer
from upwell.edge.models.trial_and_rollback import Comparison, Trial
from upwell.edge.runtimes.base import Placement, Runtime, runtime_name
from upwell.shared.errors import ConfigError, ModelFailed, UpwellError
from upwell.shared.routing.decide.router_state import SplitRoute
from upwell.shared.routing.policy.settings import HardSettings, ModelPair
from upwell.shared.routing.scheduling.run_request import RunRequest
from upwell.shared.signature.processor import CandidatesByOutput, Prepared, Processor, chunk_of, sizes_fit
from upwell.shared.signature.signature import Signature
from upwell.shared.tensors import Array, TensorSpec, is_float, numpy_dtype
from upwell.shared.value_classes import value_class

if TYPE_CHECKING:
    from queue import SimpleQueue

    from upwell.edge.runtimes.device_lock import DeviceLock
    from upwell.shared.partition.split.split_file import CutFacts
    from upwell.shared.routing.drift.drift_reference import DriftReference
    from upwell.shared.routing.policy.calibrations import Calibration
    from upwell.shared.signature.answer_agreement import Judge

State = Literal["ready", "compiling", "fallback"]
"""`ready`: it runs where it should; `compiling`: it runs on the CPU until the accelerator is ready; `fallback`: a
configured accelerator is not used, was lost while running, or refuses inputs of some shapes."""

CheckedBy = Literal["golden vectors", "the CPU's answers", "nothing"]

NO_FACTS = "", "", ""
"""The facts about the device in an answer in which it took no part."""

_ANY = RunRequest()
_ASIDE_S = 30.0
_log = logging.getLogger(__name__)

NotePrepared: TypeAlias = Callable[[float], None]
"""Takes the time that the inputs took to prepare (seconds)."""


@value_class
class RuntimeAttempt:
    """One way to run the model that failed, such as `onnx on qnn`, and why."""

    what: str
    reason: str


@value_class
class LoadReport:
    """The result of loading. `memory_bytes` is the growth of the process; 0 if unknown.

    `attempts` are the failed ones before the one in use, in order; while `state` is `compiling` the accelerator is not
    among them yet.
    """

    state: State = "ready"
    checked_by: CheckedBy = "nothing"
    attempts: Sequence[RuntimeAttempt] = ()
    load_s: float = 0.0
    warm_up_s: float = 0.0
    memory_bytes: int = 0
    remarks: Sequence[str] = ()
    """Problems with the model's answers that do not keep it from being served."""


@value_class
class ModelHealth:
    """One model as it is served now, for health, metrics and `upwell agent`'s log.

    `accelerator` is empty on the CPU. It is never set without node-assignment evidence and a check of its answers.
    """

    model: str
    state: State
    runtime: str
    accelerator: str
    placement: Placement
    report: LoadReport
    version: int = 0
    """Of the bundle; 0 without one."""
    reason: str = ""
    """Why it is not `ready`."""
    uncalibrated: str = ""
    """Why no calibration fits the policy's targets; empty if one does, or none is needed."""


_NO_REPORT = LoadReport()


class NotFinite(ModelFailed):
    """Scores are not finite numbers."""


@value_class
class EdgeRun:
    """Outputs by logical name, the times of pre-processing, model and post-processing, and what ran it.

    `was_refused` says that the accelerator refused the shapes of its inputs, so that the CPU ran it.
    """

    outputs: Mapping[str, Array]
    duration_s: float
    digest: str = ""
    exits: Mapping[str, Array] | None = None
    """The tail's inputs, for a head with an early exit."""
    candidates: CandidatesByOutput | None = None
    """The detection candidates of each row, by output."""
    was_refused: bool = False


class VersionComparison(Comparison[EdgeRun], Protocol):
    """The comparison of a version on trial with the previous one. Thread-safe."""

    def wants_audit(self) -> bool:
        """Whether another answer should be compared with the cloud's."""

    def audit(self, edge: EdgeModel, inputs: Mapping[str, Array], send: Callable[[str], None]) -> bool:
        """Have the previous version answer an audit as well, in the background; then call `send` with its name."""

    def audited(self, name: str, cloud: Mapping[str, Array]) -> None:
        """The cloud has answered the audit of that name."""


@value_class
class ModelSource:
    """The origin of a model on the device: its file's digest, its bundle (None for a bare file), and the bundle's
    calibrations and drift reference."""

    digest: str
    bundle: Bundle | None = None
    calibrations: Sequence[Calibration] = ()
    reference: DriftReference | None = None

    @property
    def version(self) -> int:
        """The bundle's version; 0 without a bundle."""
        return 0 if self.bundle is None else self.bundle.version


class EdgeModel:
    """A model on the device: its runtime, signature, scorer and scheduler.

    `exits` are the outputs that go to a tail; `device_lock` is held while an accelerator's device is open.
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
        """The tensors sent to the tail, for a head with an early exit. Callers do not see them."""
        outputs = tuple(output for output in processor.signature.outputs if output.name not in exits)
        self.signature = replace(processor.signature, outputs=outputs) if exits else processor.signature
        """The signature that callers see."""
        self.pictures = frozenset(one.name for one in processor.signature.inputs if one.kind == "image")
        """The inputs that take encoded pictures."""
        self.source = source
        self.digest = source.digest
        self.report = report
        self.durations_s: Sequence[float] = ()
        """The times of one-row runs before it was served."""
        self.heads: tuple[Head, ...] | None = None
        """The heads in its bundle; None if heads do not change with the version."""
        self.scheduler = EdfScheduler(runtime.instances)
        """Taken over from the previous version, so that runs on the device stay in order during a switch."""
        self.trial: Trial[EdgeRun] | None = None
        """Set while a new version has yet to prove itself."""
        self.versions: VersionComparison | None = None
        """The comparison with the previous version during the trial."""
        self._device_lock = device_lock
        if device_lock is not None:
            weakref.finalize(self, device_lock.release)
        self.scorer = Scorer(self.signature)
        self._scores: tuple[object, bool] = ((), False)

    def run(
        self,
        inputs: Mapping[str, Array],
        deadline_s: float,
        run_request: RunRequest = _ANY,
        note_prepared: NotePrepared | None = None,
        news: SimpleQueue[bool] | None = None,
    ) -> EdgeRun:
        """Answer inputs that passed `signature.check_inputs` on the device, in the caller's thread.

        `note_prepared` is called before the model runs, and what it raises ends the run. Raises `Refused`,
        `Superseded`, `DeadlineExceeded` and, if there is `news`, `RunWithdrawn` as `EdfScheduler.acquire` does,
        `InvalidRequest` for a picture that cannot be decoded and `ModelFailed` if the runtime fails.
        """
        with self.scheduler.acquire(deadline_s, run_request, news):
            trial = self.trial
            if trial is None:
                return self._run_checked(inputs, note_prepared)
            if trial.is_proven:
                self.trial = self.versions = None  # which frees the previous version's memory
            return trial.run(partial(self._run_checked, note_prepared=note_prepared), inputs, deadline_s)

    def run_now(self, inputs: Mapping[str, Array]) -> EdgeRun:
        """`run` without the scheduler: for tests and warm-up, before the model is served."""
        self.signature.check_inputs(inputs)
        return self._run_checked(inputs)

    def run_aside(self, other: EdgeModel, inputs: Mapping[str, Array], run_s: float) -> EdgeRun | None:
        """The answer of `other`, whose run takes `run_s`, while this model's device is idle.

        None if the device stays busy for 30 s, or if the run fails.
        """
        try:
            with self.scheduler.acquire(time.monotonic() + _ASIDE_S, RunRequest(run_s=run_s, priority="low")):
                return other.run_now(inputs)
        except UpwellError as error:  # it has other inputs, or the device is too busy
            _log.debug("not run aside: %s", error)
        except Exception:  # noqa: BLE001  whatever a runtime throws: the request itself was answered
            _log.debug("not run aside", exc_info=True)
        return None

    def _run_checked(self, inputs: Mapping[str, Array], note_prepared: NotePrepared | None = None) -> EdgeRun:
        started_s, processor = time.monotonic(), self.processor
        candidates: CandidatesByOutput | None = None
        if processor.identity:  # no pre-processing, and the inputs were already checked
            rows = next(iter(inputs.values())).shape[0] if self.signature.has_rows else 1
            tensors = inputs
            if processor.chunk in (0, rows):
                outputs = self.runtime.run(inputs)
            else:
                outputs = processor.run_rows(self.runtime.run, Prepared(inputs, rows, None))
        else:
            prepared = processor.pre(inputs)
            if note_prepared is not None:
                note_prepared(time.monotonic() - started_s)
            tensors = prepared.tensors
            made = processor.run_rows(self.runtime.run, prepared)
            outputs, candidates = processor.post_with_candidates(made, prepared)
        was_refused = bool(self.runtime.placement.refused) and self._was_refused(tensors)
        if not self.exits:
            return EdgeRun(outputs, time.monotonic() - started_s, self.digest, None, candidates, was_refused)
        exits = {spec.name: outputs[spec.name] for spec in self.exits}
        answer = {output.name: outputs[output.name] for output in self.signature.outputs}
        return EdgeRun(answer, time.monotonic() - started_s, self.digest, exits, candidates, was_refused)

    def _was_refused(self, tensors: Mapping[str, Array]) -> bool:
        """Whether the accelerator refuses inputs of the shapes that these tensors of the model were run in."""
        chunk = self.processor.chunk
        shapes = [tensors[spec.name].shape for spec in self.runtime.inputs]
        run_in = tuple([(chunk, *shape[1:]) if chunk else shape for shape in shapes])
        return run_in in self.runtime.placement.refused

    @property
    def exit_row_bytes(self) -> int:
        """The size of one row of the exits on the wire."""
        return sum(map(row_bytes, self.exits))

    def can_score(self, hards: Collection[HardSettings]) -> bool:
        """Whether its outputs can be measured in any of these ways; the result is cached per object."""
        asked, can = self._scores
        if asked is not hards:
            can = any(map(self.scorer.can, hards))
            self._scores = hards, can
        return can

    @property
    def accelerator(self) -> str:
        """The accelerator that runs nodes of it, by evidence; empty for the CPU."""
        placement = self.runtime.placement
        return placement.accelerator if placement.nodes_on_accelerator else ""

    @property
    def state(self) -> State:
        """The load report's state; `fallback` also if an accelerator was lost since loading."""
        return "fallback" if self.report.state == "ready" and self.runtime.placement.reason else self.report.state

    def facts(self, digest: str = "", *, was_refused: bool = False) -> tuple[str, str, str]:
        """The `edge_digest`, `accelerator` and `edge_state` of an answer; `digest` names the version that ran if it was
        another, `was_refused` is its run's."""
        placement, state = self.runtime.placement, self.report.state
        is_used = placement.nodes_on_accelerator > 0 and not was_refused
        if state == "ready" and placement.reason and not is_used:
            state = "fallback"
        return digest or self.digest, placement.accelerator if is_used else "cpu", state

    def check_cloud(self, outputs: Mapping[str, Array], rows: int) -> None:
        """Raise `ModelFailed` (`NotFinite`) unless the cloud's outputs match the signature for `rows` rows.

        Floats must be finite, except in outputs that `model.yaml` declares as plain tensors.
        """
        self.signature.check_outputs(outputs, rows)
        name = self.not_finite(outputs)
        if name:
            raise NotFinite(f"output {name!r} contains values that are not finite")

    def not_finite(self, outputs: Mapping[str, Array]) -> str:
        """The first output with values that are not finite though they must be; empty if there is none."""
        for output in self.signature.outputs:
            array = outputs[output.name]
            may_be_any = self.processor.is_described and output.kind == "tensor"
            if is_float(array.dtype) and not may_be_any and not np.isfinite(array).all():
                return output.name
        return ""

    def judge(self, hard: HardSettings | None) -> Judge | None:
        """What tells whether two answers agree; None for a model whose answers cannot be compared."""
        from upwell.shared.signature.answer_agreement import Judge

        with suppress(ConfigError):
            return Judge(self.signature, box_score=(hard or HardSettings()).box_score, with_labels=False)
        return None

    def close(self) -> None:
        """Close the runtime, then release the device."""
        self.runtime.close()
        if self._device_lock is not None:
            self._device_lock.release()


def row_bytes(spec: TensorSpec) -> int:
    """The size of one row of a tensor; a dynamic dimension counts as 1, since it is unknown here."""
    return numpy_dtype(spec.datatype).itemsize * math.prod(max(1, dim) for dim in spec.shape[1:])


def _specs(signature: Signature, names: Collection[str]) -> tuple[TensorSpec, ...]:
    """The outputs with these names. Raises `ConfigError` for unknown names."""
    known = {output.name: output.spec for output in signature.outputs}
    missing = sorted(set(names) - set(known))
    if missing or (names and len(names) == len(known)):
        problem = f"there is no output {missing[0]!r}" if missing else "no output is left for callers"
        raise ConfigError.at(None, f"{problem}; the model gives {', '.join(known)}", "edge.exits")
    return tuple(known[name] for name in names)


@value_class
class FullModel:
    """The whole of a split model, if the device runs it itself."""

    processor: Processor
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def post(self, outputs: Mapping[str, Array], prepared: Prepared) -> Mapping[str, Array]:
        """Post-process model outputs computed elsewhere into the signature's outputs. Raises `ModelFailed`."""
        for spec in self.outputs:
            array = outputs.get(spec.name)
            if array is None or array.dtype != numpy_dtype(spec.datatype):
                raise ModelFailed(f"head and tail do not give {spec.name!r} as {spec.datatype}")
            if not sizes_fit(array.shape[1:], spec.shape[1:]):
                raise ModelFailed(f"head and tail give {spec.name!r} as {list(array.shape)}, not {list(spec.shape)}")
        return self.processor.post(outputs, prepared)


@value_class
class HeadOutput:
    """A head's output: the tail's inputs by name, and the way to turn the tail's answer into that of the whole."""

    tensors: Mapping[str, Array]
    duration_s: float
    made: Mapping[str, Array]
    whole: FullModel | None = None
    prepared: Prepared | None = None
    was_refused: bool = False
    """See `EdgeRun`."""

    def joined(self, outputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """The outputs of the whole from those of the tail. Raises `ModelFailed` if the tail's are wrong."""
        both = {**self.made, **outputs} if self.made else outputs
        if self.whole is None or self.prepared is None:
            return both
        return self.whole.post(both, self.prepared)


@value_class
class Head:
    """One cut: the head as a model on the device, and the tail's names for router and cloud."""

    cut: CutFacts
    edge: EdgeModel
    split_route: SplitRoute
    whole: FullModel | None = None

    def takes(self, rows: int) -> bool:
        """Whether it can run this many rows at once, as its tail must too."""
        return rows == 1 or self.edge.signature.has_rows or not chunk_of(self.edge.runtime.inputs)

    def run(
        self,
        inputs: Mapping[str, Array],
        deadline_s: float,
        run_request: RunRequest,
        note_prepared: NotePrepared | None = None,
    ) -> HeadOutput:
        """Run it on checked inputs of the whole. Raises as `EdgeModel.run` does."""
        taken = self.edge.signature.inputs
        own = inputs if len(taken) == len(inputs) else {one.name: inputs[one.name] for one in taken}
        run = self.edge.run(own, deadline_s, run_request, note_prepared)
        tensors = {tensor.name: run.outputs[tensor.name] for tensor in self.cut.tensors}
        made = {name: run.outputs[name] for name in self.cut.outputs}
        if not (self.cut.raw_inputs or self.cut.needs_post):
            return HeadOutput(tensors, run.duration_s, made, was_refused=run.was_refused)
        prepared = self.edge.processor.pre(own) if self.whole is None else self.whole.processor.pre(inputs)
        tensors.update({name: prepared.tensors[name] for name in self.cut.raw_inputs})
        whole = self.whole if self.cut.needs_post else None
        return HeadOutput(tensors, run.duration_s, made, whole, prepared, run.was_refused)


@value_class
class ServedModel:
    """A model by the name its callers use; `cloud_model` is its name in the cloud, empty without a cloud side.

    `heads` are the cuts at which it can be split. For the tail of a cut, `whole` is the name of the split model.
    """

    name: str
    edge: EdgeModel | None
    cloud_model: str = ""
    heads: tuple[Head, ...] = ()
    whole: str = ""
    entry_model: EdgeModel | None = field(init=False)
    """The model that takes callers' inputs: the whole on the device, or a head; None if only the cloud does."""

    def __post_init__(self) -> None:
        """Choose the entry model once."""
        heads = [head.edge for head in self.heads]
        chosen = self.edge or next((head for head in heads if head.signature.has_rows), heads[0] if heads else None)
        object.__setattr__(self, "entry_model", chosen)

    def head(self, key: str) -> Head:
        """The head with this key."""
        return next(head for head in self.heads if head.split_route.key == key)

    @property
    def model_pair(self) -> ModelPair:
        """The pair that identifies calibrations; the cloud's digest is learned from its answers."""
        return ModelPair() if self.edge is None else ModelPair(self.edge.digest, runtime_name(self.edge.runtime))

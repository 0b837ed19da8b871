"""Runs a bundle on the cases of the evaluation set and compares its answers with the correct ones."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from upwell.edge.bundle.bundle import Trust
from upwell.edge.case_collection.collected_case import CaseFacts, CaseSignature, CollectedCase, OutputFacts
from upwell.edge.models.hardness_scorer import NO_SCORES, LoggedScores
from upwell.edge.models.model_config import EdgeSide, ModelSection
from upwell.edge.updates.model_versions.model_start import loaded
from upwell.shared.errors import ConfigError, InvalidRequest, ModelFailed
from upwell.shared.routing.hardness import RISING
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.signature.answer_agreement import found_boxes, label_of
from upwell.tools.cases.case_labels import Label, answer_label, form_of

Floats = npt.NDArray[np.float64]
_NO_BOXES = np.zeros((0, 6))


@dataclass(frozen=True)
class Judged:
    """A case with its correct answer, the cloud's answer, if there is one, and the probability with which a request
    like it became a case with a known correct answer.
    """

    facts: CaseFacts
    truth: Label
    cloud: Label | None
    chance: float


@dataclass
class Answers:
    """One bundle's answer to each case: None if its model failed. `hardness` grows with how hard a row is."""

    name: str
    digest: str
    labels: list[Label | None] = field(default_factory=list)
    boxes: list[Floats] = field(default_factory=list)
    """Detections [n, 6], with the class as an index into `names`."""
    hardness: list[float] = field(default_factory=list)
    measures: list[Mapping[str, float]] = field(default_factory=list)
    """Every hardness measure that applies, as in a request log."""
    scores: list[LoggedScores] = field(default_factory=list)
    """As in a request log, too: a policy's calibration applies to these."""
    run_s: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class EvaluationRun:
    """The cases that every bundle is run on, how hardness is measured, and numbers for the names of classes."""

    cases: Sequence[CaseFacts]
    read: Callable[[str], CollectedCase]
    hard: HardSettings
    names: dict[str, int]
    step: Callable[[], None]


def answers_of(path: Path, trial: EvaluationRun) -> Answers:
    """Run a bundle, or a bare model file, on the cases. Raises `ConfigError` if it does not fit them."""
    if not path.exists():
        raise ConfigError.at(path, "there is no such bundle; expected a folder, an archive or a model file")
    is_file = path.suffix.lower() in (".onnx", ".tflite")
    side = EdgeSide(file=path) if is_file else EdgeSide(bundle=path)
    with loaded("model", ModelSection(edge=side), Trust((), False)) as served:
        edge = served.edge
        assert edge is not None  # noqa: S101  it has that side alone
        found = Answers(str(path), edge.digest)
        signature = CaseSignature.of(edge.signature)
        output = signature.answer
        wanted = dict.fromkeys(facts.signature.answer for facts in trial.cases)  # versions may differ in their classes
        if all(misfits := [_misfit(output, one) for one in wanted]):
            raise ConfigError.at(path, misfits[-1])
        can_score = edge.scorer.can(trial.hard)
        for facts in trial.cases:
            inputs = trial.read(facts.id).inputs()
            label, hardness, boxes = None, math.inf, _NO_BOXES
            measures: Mapping[str, float] = {}
            scores = NO_SCORES
            try:
                run = edge.run_now(inputs)
                outputs = run.outputs
                found.run_s.append(run.duration_s)
                measures = edge.scorer.score_all(outputs, trial.hard, 1, run.candidates)[0]
                scores = edge.scorer.logged(outputs, trial.hard, 0, run.candidates)
                label = None if output is None else answer_label(output, outputs)
                if output is not None and output.kind == "detections":
                    boxes = found_boxes(outputs[output.name])
                    boxes = boxes[(boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])]
                    numbers = [
                        trial.names.setdefault(label_of(int(b), output.labels), len(trial.names)) for b in boxes[:, 5]
                    ]
                    boxes[:, 5] = numbers
                if can_score:
                    value = edge.scorer.score(outputs, trial.hard, 1, run.candidates)[0]
                    hardness = math.inf if math.isnan(value) else value if trial.hard.measure in RISING else -value
            except InvalidRequest as error:
                raise ConfigError.at(path, f"the model does not accept case {facts.id[:12]}: {error}") from None
            except ModelFailed:
                pass  # no answer counts as wrong
            found.labels.append(label)
            found.boxes.append(boxes)
            found.hardness.append(hardness)
            found.measures.append(measures)
            found.scores.append(scores)
            trial.step()
    return found


def _misfit(given: OutputFacts | None, wanted: OutputFacts | None) -> str:
    """Why none of a model's answers can be right for a case, whatever it says; empty if they can."""
    if wanted is None:
        return ""
    if given is None or form_of(given) != form_of(wanted):
        kind = "nothing" if given is None else given.kind
        return f"it answers with {kind}, but the cases with {wanted.kind}; expected a model.yaml that describes it so"
    names = given.labels or [name for name in wanted.labels if name.isdecimal()]  # without names it says numbers
    if wanted.labels and not set(wanted.labels) & set(names):
        return f"its classes have none of the cases' names ({', '.join(wanted.labels[:5])}); expected the same `labels`"
    return ""


def is_right(said: Label | None, truth: Label) -> bool:
    """Whether a class is the correct one."""
    return said is not None and said.label is not None and said.label == truth.label


def truths(
    cases: Iterable[CaseFacts], labels: Mapping[str, Label], read: Callable[[str], CollectedCase], *, by_cloud: bool
) -> tuple[list[Judged], float]:
    """The cases with a known correct answer: by people, or with `by_cloud` by the cloud if no person gave one; and the
    share of the requests for which none of them stands.

    The cloud has answered each hard row, but few of those that the device kept. So a case's chance π falls by the share
    of the cases decided alike, each counted 1/π times, whose correct answer is known (a weighting-class adjustment;
    Little 1986).
    """
    found: list[tuple[CaseFacts, Label, Label | None]] = []
    every: dict[Hashable, float] = defaultdict(float)
    known: dict[Hashable, float] = defaultdict(float)
    for facts in cases:
        output = facts.signature.answer
        said = None
        if output is not None and (by_cloud or facts.id in labels):
            said = answer_label(output, read(facts.id).cloud_outputs())
        truth = labels.get(facts.id) or (said if by_cloud else None)
        every[_decided(facts)] += 1 / facts.inclusion
        if truth is not None:
            found.append((facts, truth, said))
            known[_decided(facts)] += 1 / facts.inclusion
    judged = [
        Judged(facts, truth, said, facts.inclusion * known[_decided(facts)] / every[_decided(facts)])
        for facts, truth, said in found
    ]
    return judged, sum(every[one] for one in every.keys() - known.keys()) / max(sum(every.values()), 1.0)


def _decided(facts: CaseFacts) -> Hashable:
    return facts.route, facts.reason, facts.is_hard

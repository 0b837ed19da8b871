"""What a run over the cases keeps of each answer is what an agent would log, and measure, of the same request."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.unit import models_for_tests as models
from upwell.edge.case_collection.collected_case import (
    CaseFacts,
    CaseSignature,
    CollectedCase,
    answer_bytes,
    request_bytes,
)
from upwell.edge.models.hardness_scorer import NO_SCORES
from upwell.shared.errors import ConfigError
from upwell.shared.routing.calibration.logged_hardness import measured
from upwell.shared.routing.hardness import LogitFit
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.routing.request_log_line import LogLine
from upwell.tools.cases.case_labels import Label, LabelledBox
from upwell.tools.evaluate.bundle_comparison import compare, share
from upwell.tools.evaluate.cli import _covered, _show
from upwell.tools.evaluate.evaluation_run import Answers, EvaluationRun, Judged, answers_of, truths

DETECTOR = """\
version: 1
signature:
  inputs: {x: {kind: tensor, dtype: FP32, shape: [-1, 1, 1]}}
  outputs: {detections: {kind: detections}}
post: [{boxes: {format: cxcywh, normalized: true, min_score: 0.5}}]
"""
CLASSIFIER = """\
version: 1
signature:
  inputs: {x: {kind: tensor, dtype: FP32, shape: [-1, 1]}}
  outputs: {scores: {kind: logits}}
"""


def saved(path: Path, description: str, answer: list[list[list[float]]] | list[list[float]], output: str) -> Path:
    """A model that answers the same whatever it is asked, for one row of a single number."""
    constant = np.array(answer, np.float32)
    nodes = [helper.make_node("Mul", ["x", "zero"], ["nothing"]), helper.make_node("Add", ["nothing", "is"], [output])]
    shape = ("N",) + (1,) * (constant.ndim - 1)
    constants = {"zero": np.array(0, np.float32), "is": constant}
    made = models.tensor(output, ("N", *constant.shape[1:]))
    models.save(path, nodes, [models.tensor("x", shape)], [made], constants)
    path.with_name("model.yaml").write_text(description)
    return path


def answered(path: Path, shape: tuple[int, ...], hard: HardSettings, *versions: Mapping[str, object]) -> Answers:
    """The answers to one case for each version of the model that collected them, by its output."""
    cases = []
    for outputs in [[one] for one in versions] or [[]]:
        signature = CaseSignature.model_validate(
            {"has_rows": True, "inputs": [{"name": "x", "kind": "tensor"}], "outputs": outputs}
        )
        cases.append(
            CaseFacts(
                id=uuid.uuid4().hex, model="m", created_unix_s=0.0, why=("random",), inclusion=1.0, signature=signature
            )
        )
    request = request_bytes("m", {"x": np.zeros(shape, np.float32)})
    case = CollectedCase(cases[0], request, answer_bytes("m", {}), b"")
    return answers_of(path, EvaluationRun(cases, lambda _: case, hard, {}, lambda: None))


def as_logged(found: Answers) -> LogLine:
    """The line that an agent would have logged."""
    return LogLine(t_s=0.0, model="m", size_bytes=1, hardness=found.measures[0], **found.scores[0])


def test_a_detectors_candidates_count_and_a_calibration_moves_them(tmp_path: Path) -> None:
    """One box is found, and another is a candidate with a score of 0.4, below what the model shows."""
    boxes = np.array([[0.2, 0.2, 0.1, 0.1, 0.9, 0.0], [0.7, 0.7, 0.1, 0.1, 0.4, 0.0]]).T.tolist()
    path = saved(tmp_path / "model.onnx", DETECTOR, [boxes], "found")
    hard = HardSettings("margin", temperature=0.5, bias=1.0, hidden_slope=1.0)
    found = answered(path, (1, 1, 1), hard)
    assert found.scores[0]["chances"] == pytest.approx((0.9, 0.4), abs=1e-3)
    (value,) = measured([as_logged(found)], "margin", hard.fit).tolist()
    assert found.hardness == [pytest.approx(-value, abs=1e-3)]
    assert value < 0.5


def test_a_classifiers_logits_are_kept(tmp_path: Path) -> None:
    path = saved(tmp_path / "model.onnx", CLASSIFIER, [[2.0, 0.0, 1.0]], "scores")
    found = answered(path, (1, 1), HardSettings("margin", temperature=4.0))
    assert found.scores == [{**NO_SCORES, "logits": (2.0, 0.0, 1.0)}]
    assert found.hardness == pytest.approx((-measured([as_logged(found)], "margin", LogitFit(4.0))).tolist())


def test_a_model_none_of_whose_answers_could_be_right_is_refused(tmp_path: Path) -> None:
    """Both would be wrong in every case, and the gate would open for the one as for the other."""
    path = saved(tmp_path / "model.onnx", CLASSIFIER, [[2.0, 0.0, 1.0]], "scores")
    cats = {"name": "scores", "kind": "probabilities", "labels": ["cat", "dog"]}
    with pytest.raises(ConfigError, match=r"its classes have none of the cases' names \(cat, dog\)"):
        answered(path, (1, 1), HardSettings(), cats)
    numbers = {**cats, "labels": ["0", "1"]}
    assert answered(path, (1, 1), HardSettings(), numbers).labels == [Label(label="0")]
    assert answered(path, (1, 1), HardSettings(), numbers, cats).labels == 2 * [Label(label="0")]
    path.with_name("model.yaml").unlink()
    with pytest.raises(ConfigError, match="it answers with tensor, but the cases with probabilities"):
        answered(path, (1, 1), HardSettings(), cats)


def test_a_model_that_fails_is_not_better_than_one_that_errs(capsys: pytest.CaptureFixture[str]) -> None:
    signature = CaseSignature.model_validate({"has_rows": True, "inputs": [], "outputs": []})
    facts = CaseFacts(id="0" * 32, model="m", created_unix_s=0.0, why=("random",), inclusion=1.0, signature=signature)
    cases = [Judged(facts, Label(value=truth), None, 1.0) for truth in (0.0, 0.1, 5.0)]
    a = Answers("a", "a", labels=[Label(value=value) for value in (0.3, 0.1, 4.9)])
    b = Answers("b", "b", labels=[None, None, None])
    document = compare(a, b, cases, {}, "", 0.02)
    assert [one["mean"] for one in document["quality"]] == pytest.approx([-0.4 / 3, -5.6 / 3])
    _show({**document, "covers": "all requests", "without_label": 0, "margin": 0.01, "passes": False})
    assert "B may be worse by more than 0.01\n" in capsys.readouterr().out


def test_detectors_are_compared_by_group_too() -> None:
    signature = CaseSignature.model_validate({"has_rows": True, "inputs": [], "outputs": []})
    box = (0.1, 0.1, 0.5, 0.5)
    cases = [
        Judged(CaseFacts(id="0" * 32, model="m", tags={"site": site}, created_unix_s=0.0, why=("random",),
                         inclusion=0.5, signature=signature),
               Label(boxes=(LabelledBox(label="x", box=box),)), None, chance)
        for site, chance in (("north", 0.5), ("south", 0.5), ("south", 0.25))
    ]  # fmt: skip
    right, nothing = np.array([[*box, 0.9, 0.0]]), np.zeros((0, 6))
    a, b = Answers("a", "a", boxes=[right] * 3), Answers("b", "b", boxes=[right, nothing, nothing])
    document = compare(a, b, cases, {"x": 0}, "site", 0.02)
    found = {site: [one["mean"] for one in sides] for site, sides in document["groups"].items()}
    assert found == {"north": [1.0, 1.0], "south": [1.0, 0.0]}
    assert "groups" not in compare(a, b, cases, {"x": 0}, "", 0.02)


def decided(route: str, why: tuple[str, ...], inclusion: float, answers: bool) -> CollectedCase:
    """A case that the cloud, if it answered, called right: class 1."""
    facts = CaseFacts.model_validate(
        {"id": uuid.uuid4().hex, "model": "m", "created_unix_s": 0.0, "why": why, "inclusion": inclusion,
         "sample": 0.5, "route": route, "reason": "hard" if route == "cloud" else "easy", "is_hard": route == "cloud",
         "signature": {"has_rows": True, "inputs": [], "outputs": [{"name": "scores", "kind": "logits"}]}}
    )  # fmt: skip
    said = {"scores": np.array([[0.0, 1.0]], np.float32)} if answers else {}
    return CollectedCase(facts, request_bytes("m", {}), b"", answer_bytes("m", said))


def test_cases_without_a_known_answer_are_stood_for_by_those_decided_alike() -> None:
    # 80 requests went up and 120 were kept; half of each were chosen by chance, and a fifth of those kept were audited.
    hard = [decided("cloud", ("random",), 0.5, answers=True) for _ in range(40)]
    audited = [decided("edge", ("audited",), 0.6, answers=True) for _ in range(24)]
    kept = [decided("edge", ("random",), 0.6, answers=False) for _ in range(48)]
    cases = {case.facts.id: case for case in (*hard, *audited, *kept)}
    judged, unseen = truths([case.facts for case in cases.values()], {}, cases.__getitem__, by_cloud=True)
    assert (len(judged), unseen) == (64, 0.0)
    right = np.array([case.facts.route == "edge" for case in judged], np.float64)
    assert share(right, np.array([case.chance for case in judged])).mean == pytest.approx(120 / 200)


def test_a_kind_of_request_of_which_no_answer_is_known_is_not_claimed() -> None:
    kept = [decided("edge", ("random",), 0.5, answers=False) for _ in range(3)]
    cases = {case.facts.id: case for case in (decided("cloud", ("random",), 0.5, answers=True), *kept)}
    judged, unseen = truths([case.facts for case in cases.values()], {}, cases.__getitem__, by_cloud=True)
    assert unseen == pytest.approx(0.75)
    assert _covered(judged, unseen) == "25.0% of all requests"
    assert _covered(judged, 0.0) == "all requests"


def test_pictures_without_any_object_have_no_precision(capsys: pytest.CaptureFixture[str]) -> None:
    signature = CaseSignature.model_validate({"has_rows": True, "inputs": [], "outputs": []})
    cases = [
        Judged(CaseFacts(id="0" * 32, model="m", created_unix_s=0.0, why=("random",), inclusion=chance,
                         signature=signature), Label(boxes=()), None, chance)
        for chance in (0.5, 0.1)
    ]  # fmt: skip
    a, b = (Answers(name, "", boxes=[np.zeros((0, 6))] * 2) for name in "ab")
    document = compare(a, b, cases, {}, "", 0.02)
    assert document["quality"][0]["mean"] is None
    _show({**document, "covers": "all requests", "without_label": 0})
    assert "B \u2212 A: ? [?, ?], p = 1 (bootstrap)" in capsys.readouterr().out

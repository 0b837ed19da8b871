"""A detector's rows against a reference: its hardness is that of unmoved chances, as references have always had it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from typer.testing import CliRunner

from tests.unit import models_for_tests as models
from upwell.edge.bundle.bundle import Trust
from upwell.edge.models.hardness_scorer import Scorer
from upwell.edge.models.model_config import EdgeSide, ModelSection
from upwell.edge.models.row_measures import measured
from upwell.edge.updates.model_versions.model_start import loaded
from upwell.shared.routing.drift.drift_reference import DriftReference, RowMeasures, reference_of
from upwell.shared.routing.drift.model_drift import ModelDrift
from upwell.shared.routing.hardness import uncalibrated
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.signature.signature import LogicalInput, LogicalOutput, Signature
from upwell.shared.tensors import Array, TensorSpec
from upwell.tools.cli import build_app

BOXES = LogicalOutput("boxes", "detections", TensorSpec("boxes", "FP32", (-1, 4, 6)))
SIGNATURE = Signature((LogicalInput("x", "tensor", TensorSpec("x", "FP32", (-1, 4, 6))),), (BOXES,), True)
DESCRIPTION = """\
version: 1
signature:
  inputs: {x: {kind: tensor, dtype: FP32, shape: [-1, 4, 6]}}
  outputs: {boxes: {kind: detections}}
"""


def pictures(count: int, seed: int) -> list[Array]:
    """Two boxes each, far apart."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        boxes = np.zeros((1, 4, 6), np.float32)
        boxes[:, :, 5] = -1
        boxes[0, 0] = (0.0, 0.0, 0.2, 0.2, rng.uniform(0.2, 0.45), 1)
        boxes[0, 1] = (0.5, 0.5, 0.8, 0.8, rng.uniform(0.6, 0.9), 2)
        made.append(boxes)
    return made


def margin(boxes: Array) -> float:
    """The chance that each box is where the answer shows it, by its score alone."""
    scores: list[float] = boxes[0, :2, 4].tolist()
    return math.prod(score if score >= 0.5 else 1 - score for score in scores)


def reference() -> DriftReference:
    """One that was made before there was anything but the score to judge a box by."""
    rows = [RowMeasures(hardness=margin(boxes)) for boxes in pictures(600, 1)]
    return reference_of(rows, edge_digest="sha256:x", measure="margin", every_s=0.0)


def test_an_agent_counts_rows_as_an_older_reference_did() -> None:
    scorer, drift = Scorer(SIGNATURE), ModelDrift(reference())
    for index, boxes in enumerate(pictures(400, 2)):
        row = measured(SIGNATURE, scorer, {"boxes": boxes}, None, "margin")
        assert row.hardness == pytest.approx(margin(boxes))
        drift.add(row, 1000.0 + index)
    assert drift.report().quantities["hardness"].rows == 400
    assert drift.report().findings == []


def log_of(path: Path, seen: list[Array], began_s: float = 0.0) -> Path:
    scorer, lines = Scorer(SIGNATURE), []
    hard = HardSettings(**uncalibrated("margin")._asdict())
    for index, boxes in enumerate(seen):
        measures = scorer.score_all({"boxes": boxes}, hard, 1)[0]
        scores = scorer.logged({"boxes": boxes}, hard, 0, None)
        line = LogLine(t_s=began_s + index, model="m", size_bytes=1, hardness=measures, **scores)
        lines.append(line.model_dump_json(exclude_defaults=True))
    path.write_text("\n".join(lines) + "\n")
    return path


def findings(log: Path, bundle: Path) -> list[str]:
    arguments = ["drift", str(log), "--bundle", str(bundle), "--json"]
    done = CliRunner().invoke(build_app(arguments), arguments)
    assert done.exit_code in (0, 1), done.output
    (found,) = json.loads(done.stdout)["models"].values()
    assert found["quantities"]["hardness"]["rows"] == 400
    return list(found["findings"])


def test_a_log_of_a_detector_is_held_against_an_older_reference(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    tensors = [models.tensor(name, ("N", 4, 6)) for name in ("x", "boxes")]
    models.save(folder / "model.onnx", [helper.make_node("Identity", ["x"], ["boxes"])], tensors[:1], tensors[1:])
    (folder / "model.yaml").write_text(DESCRIPTION)
    (folder / "reference.json").write_text(reference().text())

    seen = pictures(400, 2)
    assert findings(log_of(tmp_path / "same.jsonl", seen), folder) == []
    for boxes in seen:
        boxes[0, 1, 4] = 0.97
    assert findings(log_of(tmp_path / "surer.jsonl", seen), folder) == ["world"]
    arguments = ["drift", str(log_of(tmp_path / "far.jsonl", seen, 1e300)), "--bundle", str(folder)]
    assert "1e+300 s (row" in CliRunner().invoke(build_app(arguments), arguments).output


@pytest.mark.parametrize("min_score", [0.3, 0.7])
def test_a_log_s_candidates_that_no_answer_shows_are_no_drift(tmp_path: Path, min_score: float) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    tensors = [models.tensor(name, ("N", 6, 4)) for name in ("x", "raw")]
    models.save(folder / "model.onnx", [helper.make_node("Identity", ["x"], ["raw"])], tensors[:1], tensors[1:])
    steps = f"post: [{{boxes: {{format: cxcywh, normalized: true, min_score: {min_score}}}}}]\n"
    (folder / "model.yaml").write_text(
        DESCRIPTION.replace("4, 6", "6, 4").replace("boxes: {kind", "detections: {kind") + steps
    )
    rng, rows, lines = np.random.default_rng(3), [], []
    hard = HardSettings(**uncalibrated("margin")._asdict())
    with loaded("m", ModelSection(edge=EdgeSide(bundle=folder)), Trust((), False)) as served:
        assert served.edge is not None
        for index in range(1000):
            raw = np.zeros((1, 6, 4), np.float32)
            raw[0, :4] = [[0.1, 0.4, 0.7, 0.9], [0.5] * 4, [0.1] * 4, [0.1] * 4]
            raw[0, 4, :2], raw[0, 5, 2] = rng.uniform(0.15, 0.28, 2), rng.uniform(0.5, 0.95)
            ran = served.edge.run_now({"x": raw})
            rows.append(measured(served.edge.signature, served.edge.scorer, ran.outputs, None, "margin"))
            scores = served.edge.scorer.logged(ran.outputs, hard, 0, ran.candidates)
            lines.append(LogLine(t_s=index, model="m", size_bytes=1, **scores).model_dump_json(exclude_defaults=True))
    made = reference_of(rows[:600], edge_digest="sha256:x", measure="margin", every_s=0.0)
    (folder / "reference.json").write_text(made.text())
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(lines[600:]) + "\n")
    assert findings(log, folder) == []

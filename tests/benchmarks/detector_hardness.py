"""Which measure tells when a detector needs the cloud: on three made sets, held against a larger detector's answers.

    python -m tests.benchmarks.detector_hardness [--pictures 600] [--folder DIR] [--only SET]

For each set a small and a larger detector are trained (`tests/models/detectors.py`; some minutes on a CPU) and asked
about pictures that neither has seen. The answers agree where their boxes pair off, as `upwell policy collect` has it.
Told are, for each measure, the AUROC against disagreement, and how much of the disagreement that sending 20 % at random
leaves is gone when the hardest 20 % are sent: by pictures, and by boxes without a partner; `margin, calibrated` is that
of the second half of the pictures after a calibration on the first. DIR keeps the detectors.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
from rich.progress import track
from rich.table import Table

from tests.models.detectors import SETS, DetectionSet, scenes, write_pair
from upwell.edge.models.edge_model import EdgeModel, ModelSource
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.runtimes.runtime_options import RuntimeOptions
from upwell.shared.routing.calibration.discrimination import auroc
from upwell.shared.routing.calibration.logged_hardness import measured
from upwell.shared.routing.calibration.object_chances import fitted_chances
from upwell.shared.routing.hardness import RISING, Measure, uncalibrated
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.signature.answer_agreement import matched_boxes
from upwell.shared.signature.model_yaml import load_description
from upwell.shared.signature.processor import Processor
from upwell.shared.tensors import Array
from upwell.tools.terminal import stdout_console

SHARE = 0.2
BOX_SCORE = 0.5
EDGE_STEPS, CLOUD_STEPS = 500, 300
SEED = 99


@dataclass(frozen=True)
class Worth:
    """Of one measure on one set: its AUROC, and the parts of the disagreement that the share removes."""

    auroc: float
    pictures: float
    boxes: float


@dataclass(frozen=True)
class Comparison:
    """One set: the share of pictures in disagreement, boxes without a partner per picture, and each measure's worth."""

    disagreeing: float
    partnerless: float
    measures: dict[str, Worth]


def loaded(folder: Path) -> EdgeModel:
    """The detector in that folder, as an agent loads it."""
    runtime = load_runtime(folder / "model.onnx", RuntimeOptions())
    processor = Processor(load_description(folder / "model.yaml"), runtime.inputs, runtime.outputs, "onnx")
    return EdgeModel(runtime, processor, ModelSource(""))


def compared(of: DetectionSet, folder: Path, pictures: int) -> Comparison:
    """The measures on so many pictures of a set whose detectors lie in `folder`."""
    edge, cloud = loaded(folder / "edge"), loaded(folder / "cloud")
    settings = [
        HardSettings(measure=measure, box_score=BOX_SCORE, **uncalibrated(measure)._asdict())
        for measure in get_args(Measure)
    ]
    settings = [hard for hard in settings if hard.measure not in ("output", "function") and edge.scorer.can(hard)]
    values: dict[Measure, list[float]] = {hard.measure: [] for hard in settings}
    alone: list[int] = []
    lines: list[LogLine] = []
    for scene in track(scenes(of, pictures, SEED), of.name, transient=True):
        inputs = {"image": scene.picture[None]}
        run, truth = edge.run_now(inputs), cloud.run_now(inputs)
        for hard in settings:
            (value,) = edge.scorer.score(run.outputs, hard, 1, run.candidates)
            values[hard.measure].append(value if hard.measure in RISING else -value)
        alone.append(_partnerless(run.outputs["detections"][0], truth.outputs["detections"][0]))
        scores = edge.scorer.logged(run.outputs, settings[0], 0, run.candidates)
        lines.append(LogLine(t_s=len(lines), model=of.name, size_bytes=1, edge_correct=alone[-1] == 0, **scores))
    counts = np.array(alone)
    worths: dict[str, Worth] = {measure: _worth(np.array(found), counts) for measure, found in values.items()}
    half = pictures // 2
    calibrated = measured(lines[half:], "margin", fitted_chances(lines[:half], "margin", 1.0))
    worths["margin, calibrated"] = _worth(-calibrated, counts[half:])
    return Comparison(float((counts > 0).mean()), float(counts.mean()), dict(_best_first(worths)))


def _partnerless(edge: Array, cloud: Array) -> int:
    ours, theirs = (
        boxes[(boxes[:, 5] >= 0) & (boxes[:, 4] >= BOX_SCORE)].astype(np.float64) for boxes in (edge, cloud)
    )
    return len(ours) + len(theirs) - 2 * len(matched_boxes(ours, theirs))


def _best_first(worths: dict[str, Worth]) -> list[tuple[str, Worth]]:
    return sorted(worths.items(), key=lambda one: -one[1].auroc)


def _worth(scores: Array, counts: Array) -> Worth:
    sent = np.argsort(-scores, kind="stable")[: round(SHARE * len(scores))]
    kept = np.ones(len(scores), bool)
    kept[sent] = False

    def removed(losses: Array) -> float:
        return 1 - float(losses[kept].sum() / losses.sum()) / (1 - SHARE)

    return Worth(auroc(scores, counts > 0), removed(counts > 0), removed(counts))


def main() -> None:
    """Train what is missing, compare, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pictures", type=int, default=600)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", choices=[of.name for of in SETS])
    given = parser.parse_args()
    console = stdout_console()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        for of in SETS:
            if given.only not in (None, of.name):
                continue
            if not (folder / of.name / "cloud" / "model.yaml").exists():
                console.print(f"training the detectors of {of.name}")
                write_pair(of, folder / of.name, edge_steps=EDGE_STEPS, cloud_steps=CLOUD_STEPS)
            found = compared(of, folder / of.name, given.pictures)
            table = Table(title=f"{of.name}: {found.disagreeing:.1%} of {given.pictures} pictures in disagreement")
            for name in ("measure", "AUROC", f"removed by {SHARE:.0%}: pictures", "boxes"):
                table.add_column(name, justify="left" if name == "measure" else "right")
            for measure, worth in found.measures.items():
                table.add_row(measure, f"{worth.auroc:.3f}", f"{worth.pictures:.0%}", f"{worth.boxes:.0%}")
            console.print(table)


if __name__ == "__main__":
    main()

"""Halves of real networks in ONNX Runtime give what the whole gives, at every legal cut along one order and at others.

Int8 models to the bit. Float ones within 1e-5 of the largest value of an output: which operators are fused, and in
which layout they compute, depends on what stands beside them, and with it the order of additions.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.models.int8 import quantized
from tests.models.light_zoo import LIGHT_ZOO, light_zoo_model
from tests.models.mobilenet import build_mobilenet_v2
from tests.models.onnx_recomposing import BASIC, DEFAULT, CutModel
from tests.models.residual_digits import build_residual_digits
from tests.models.resnet import build_resnet50

LARGEST_ERROR = 1e-5
OTHERS = 200

DEMO = Path(__file__).parents[3] / "shared/upwell/tools/demo/assets"

FLOAT: dict[str, Callable[[], onnx.ModelProto]] = {
    "residual_digits": build_residual_digits,
    "demo_digits": lambda: onnx.load(str(DEMO / "cloud/digits-large/1/model.onnx")),
    "demo_pages": lambda: onnx.load(str(DEMO / "cloud/pages-large/1/model.onnx")),
    "mobilenet_v2": lambda: build_mobilenet_v2(0.35, 96, classes=100),
    "resnet50": lambda: build_resnet50(0.25, 64, classes=100),
}


@pytest.mark.parametrize(
    ("name", "branches"), [("residual_digits", True), ("demo_digits", True), ("demo_pages", False)]
)
def test_small_float_models(tmp_path: Path, name: str, branches: bool) -> None:
    cut = CutModel(FLOAT[name](), tmp_path)
    outcome = cut.recompose(cut.edges(OTHERS))
    assert outcome.cuts >= 2
    assert bool(outcome.several) is branches, "a chain's cuts are of one tensor; a branch has cuts of several"
    assert outcome.worst <= LARGEST_ERROR, outcome


@pytest.mark.parametrize("level", [DEFAULT, BASIC])
def test_small_int8_model(tmp_path: Path, level: Any) -> None:
    cut = CutModel(quantized(build_residual_digits(), tmp_path), tmp_path)
    outcome = cut.recompose(cut.edges(OTHERS), level)
    assert outcome.equal == outcome.cuts > 10
    assert outcome.several
    assert outcome.datatypes == {"UINT8"}


@pytest.mark.slow
def test_a_sample_of_an_int8_mobilenet(tmp_path: Path) -> None:
    cut = CutModel(quantized(build_mobilenet_v2(0.35, 64, classes=100), tmp_path, rows=2), tmp_path)
    edges = cut.edges(0)
    outcome = cut.recompose(edges[::4])
    assert outcome.equal == outcome.cuts > 10
    assert outcome.several
    assert outcome.datatypes == {"UINT8"}


@pytest.mark.parametrize("name", ["squeezenet", pytest.param("shufflenet", marks=pytest.mark.exhaustive)])
def test_a_sample_of_the_zoo(tmp_path: Path, name: str) -> None:
    cut = CutModel(light_zoo_model(name), tmp_path)
    outcome = cut.recompose(cut.edges(12)[::6])
    assert outcome.several
    assert outcome.worst <= LARGEST_ERROR, outcome


def test_rows_of_a_dynamic_batch_pass_both_halves(tmp_path: Path) -> None:
    cut = CutModel(quantized(build_residual_digits(dynamic_batch=True), tmp_path), tmp_path)
    edges = cut.edges(0)
    for rows in (1, 3):
        outcome = cut.recompose(edges[::3], rows=rows)
        assert outcome.equal == outcome.cuts > 1


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", LIGHT_ZOO)
def test_every_cut_of_the_zoo(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _every_cut(CutModel(light_zoo_model(name), tmp_path), name, LARGEST_ERROR, capsys)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", FLOAT)
def test_every_cut_of_other_float_models(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _every_cut(CutModel(FLOAT[name](), tmp_path), name, LARGEST_ERROR, capsys)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("level", [DEFAULT, BASIC])
@pytest.mark.parametrize("name", FLOAT)
def test_every_cut_of_int8_models(tmp_path: Path, name: str, level: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """U8U8, as `upwell model quantize` makes them."""
    _every_cut(CutModel(quantized(FLOAT[name](), tmp_path), tmp_path), f"{name} int8", 0.0, capsys, level)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_every_cut_of_the_large_int8_mobilenet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = CutModel(quantized(build_mobilenet_v2(), tmp_path), tmp_path)
    _every_cut(cut, "mobilenet_v2 224 int8", 0.0, capsys)


def _every_cut(
    cut: CutModel, name: str, largest: float, capsys: pytest.CaptureFixture[str], level: Any = DEFAULT
) -> None:
    """All along one order and up to 200 others; says how many of them there are."""
    edges = cut.edges(OTHERS)
    outcome = cut.recompose(edges, level)
    with capsys.disabled():
        print(
            f"\n{name}: {outcome.cuts} cuts, {outcome.several} with several tensors, {outcome.equal} bit-equal, "
            f"worst relative error {outcome.worst:.2g}"
        )
    assert outcome.worst <= largest, outcome

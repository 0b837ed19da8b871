"""Halves of TFLite models give what the whole gives, at every legal cut along one order and at others.

Int8 models to the bit, in both packages, with XNNPACK and on kernels alone. Float ones within 1e-5 of the largest value
of an output. MobileNetV2 is a chain but for its shortcuts, so all its cuts lie along one order; a network of three rows
side by side has others.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from tests.models.make_mobilenet_tflite import PATH as MOBILENET
from tests.models.make_mobilenet_tflite import quantized, write_float
from tests.models.tflite_recomposing import KERNELS, REFERENCE, XNNPACK, CutModel, int8_of, towers
from tests.unit.tflite_for_tests import TFLITE_PACKAGES
from tests.unit.tflite_graphs_for_tests import mobile

LARGEST_ERROR = 1e-5
OTHERS = 200


@pytest.fixture(scope="module")
def mobilenet() -> CutModel:
    return CutModel(MOBILENET)


@pytest.fixture(scope="module")
def towers_int8(tmp_path_factory: pytest.TempPathFactory) -> CutModel:
    return CutModel(_int8(towers(tmp_path_factory.mktemp("towers"))))


def _int8(path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what ai-edge-quantizer brings
        return int8_of(path)


@pytest.mark.parametrize("package", TFLITE_PACKAGES)
@pytest.mark.parametrize("resolver", [XNNPACK, KERNELS])
def test_a_sample_of_an_int8_mobilenet(mobilenet: CutModel, package: str, resolver: str) -> None:
    outcome = mobilenet.recompose(mobilenet.edges(0)[::6], package, resolver)
    assert outcome.equal == outcome.cuts > 10
    assert outcome.several
    assert outcome.datatypes == {"INT8"}


@pytest.mark.parametrize("package", TFLITE_PACKAGES)
@pytest.mark.parametrize("resolver", [XNNPACK, KERNELS])
def test_a_sample_of_other_cuts_of_an_int8_network(towers_int8: CutModel, package: str, resolver: str) -> None:
    edges = towers_int8.edges(30)
    assert len(edges) == len(towers_int8.edges(0)) + 30
    outcome = towers_int8.recompose(edges[::3], package, resolver)
    assert outcome.equal == outcome.cuts > 10
    assert outcome.several


@pytest.mark.parametrize("package", TFLITE_PACKAGES)
def test_a_sample_of_a_float_network(tmp_path: Path, package: str) -> None:
    cut = CutModel(mobile(tmp_path, blocks=2))
    outcome = cut.recompose(cut.edges(10), package, XNNPACK)
    assert outcome.several
    assert outcome.worst <= LARGEST_ERROR, outcome


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("package", TFLITE_PACKAGES)
@pytest.mark.parametrize("resolver", [XNNPACK, KERNELS, REFERENCE])
def test_every_cut_of_int8_models(
    mobilenet: CutModel, towers_int8: CutModel, package: str, resolver: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, cut in (("mobilenet_v2 int8", mobilenet), ("towers int8", towers_int8)):
        _every_cut(name, cut, package, resolver, 0.0, capsys)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("package", TFLITE_PACKAGES)
@pytest.mark.parametrize("resolver", [XNNPACK, KERNELS])
def test_every_cut_of_float_models(
    tmp_path: Path, package: str, resolver: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, path in (
        ("mobilenet_v2", write_float(tmp_path)),
        ("towers", towers(tmp_path)),
        ("gated", mobile(tmp_path)),
    ):
        _every_cut(name, CutModel(path), package, resolver, LARGEST_ERROR, capsys)


@pytest.mark.exhaustive
def test_the_committed_model_is_what_its_script_makes(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what ai-edge-quantizer brings
        assert quantized(write_float(tmp_path)) == MOBILENET.read_bytes()


def _every_cut(
    name: str, cut: CutModel, package: str, resolver: str, largest: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """All along one order and up to 200 others; says how many of them there are."""
    edges = cut.edges(OTHERS)
    outcome = cut.recompose(edges, package, resolver)
    with capsys.disabled():
        print(
            f"\n{name}, {package} {resolver}: {outcome.cuts} cuts, {outcome.several} with several tensors, "
            f"{outcome.equal} bit-equal, worst relative error {outcome.worst:.2g}"
        )
    assert outcome.worst <= largest, outcome
    assert outcome.equal == outcome.cuts or largest

"""What tests of several folders share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.delegates.build import CannotBuild, build_software_delegate


@pytest.fixture(scope="session")
def software_delegate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of the compiled software delegate."""
    try:
        return build_software_delegate(tmp_path_factory.mktemp("delegate"))
    except CannotBuild as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def dynamic_range_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`linear` with 64 features and 10 classes for one row, its weights int8 and its activations quantized as it runs.

    tflite_runtime runs it and answers with garbage. `linear_weights(0, 64, 10)` gives the numbers it comes from.
    """
    quantizer = pytest.importorskip("ai_edge_quantizer.quantizer", exc_type=ImportError)
    recipe = pytest.importorskip("ai_edge_quantizer.recipe", exc_type=ImportError)
    from tests.unit.tflite_for_tests import linear

    folder = tmp_path_factory.mktemp("dynamic_range")
    plain = linear(folder, rows=1, features=64, classes=10)
    target = folder / "dynamic_range.tflite"
    target.write_bytes(quantizer.Quantizer(str(plain), recipe.dynamic_wi8_afp32()).quantize().quantized_model)
    return target

"""What tests of several folders share."""

from __future__ import annotations

import gc
import importlib.util
import signal
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.delegates.build import CannotBuild, build_software_delegate
from tests.examples import QUICK
from tests.in_process import InProcess
from upwell.shared.platform.vendor_telemetry import forbid_telemetry

if TYPE_CHECKING:
    from tests.faults.certificates import Authority

forbid_telemetry()  # for tests that load a runtime themselves

# The same examples each time, and however long they take: a run of `make test` says something about the change at hand,
# not about luck or the machine's load. `make test-all` finds others, and more of them.
settings.register_profile(QUICK, derandomize=True, deadline=None, max_examples=20)
settings.register_profile("thorough", deadline=None)
settings.load_profile(QUICK)


def pytest_configure() -> None:
    """Have SIGHUP end programs, as it does unless `nohup` has it ignored, which what the tests start would inherit."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what needs a package that is in an environment of its own."""
    if importlib.util.find_spec("tflite_runtime") is None:
        for item in items:
            if item.get_closest_marker("tflite_runtime"):
                item.add_marker(pytest.mark.skip("tflite_runtime is in an environment of its own: make test-tflite"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is made here stays: the collector of garbage need not look through all of it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> InProcess:
    """Runs `upwell` in this process."""
    return InProcess(monkeypatch, capsys)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who signs the certificates of a test run."""
    from tests.faults.certificates import Authority  # some environments have no `cryptography`

    return Authority(tmp_path_factory.mktemp("certificates"))


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

"""What `upwell devices` is made of: what counts as executed, the samples, and what is found without opening it."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.accelerators.make_samples import make
from tests.unit.test_docs import SPAN, table
from upwell.edge.config import AgentConfig
from upwell.edge.runtimes import device_lock
from upwell.shared.config.yaml import load_yaml
from upwell.tools.devices import runtime_probe, system_findings
from upwell.tools.devices.cli import RECIPES, missing, missing_packages
from upwell.tools.devices.native_log import reason_in
from upwell.tools.devices.runtime_probe import DeviceCheck, Row, judged, with_options
from upwell.tools.devices.sample_models import ASSETS, samples

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "engines.md"

# --- What counts as executed

THERE = DeviceCheck("int8", 10, 10, True)
NOWHERE = DeviceCheck("float", 3, 0, True, "npu took none of the 3 nodes")
WRONG = DeviceCheck("float", 3, 3, False, "its answers are wrong")
REFUSED = DeviceCheck("float", reason="npu refused the model")


@pytest.mark.parametrize(
    ("checks", "status", "reason"),
    [
        ((THERE, THERE), "executed", ""),
        ((THERE, REFUSED), "executed", ""),
        ((THERE, NOWHERE), "executed", ""),
        ((NOWHERE, NOWHERE), "not usable", NOWHERE.reason),
        ((THERE, WRONG), "not usable", WRONG.reason),
        ((REFUSED, WRONG), "not usable", WRONG.reason),
        ((REFUSED, NOWHERE), "not usable", REFUSED.reason),
        ((), "not usable", ""),
    ],
)
def test_executed_needs_nodes_there_and_no_wrong_answer(
    checks: tuple[DeviceCheck, ...], status: str, reason: str
) -> None:
    row = judged("onnxruntime 1.31.1", "npu", checks)
    assert (row.status, row.reason) == (status, reason)


def test_the_cpu_needs_no_count_of_nodes() -> None:
    """ONNX Runtime before 1.24 tells none."""
    uncounted = DeviceCheck("int8", 0, 0, True)
    assert judged("onnxruntime 1.23.0", "CPU", [uncounted]).status == "executed"
    assert judged("onnxruntime 1.23.0", "npu", [uncounted]).status == "not usable"
    assert judged("onnxruntime 1.23.0", "CPU", [DeviceCheck("int8", 0, 0, False)]).status == "not usable"


@pytest.mark.parametrize(
    ("options", "devices", "minded"),
    [
        ({"device_type": "CPU"}, (), True),
        ({"backend_type": "htp"}, ("CPU of Intel (0x8086:0x0000)",), True),
        ({"backend_type": "htp"}, ("NPU of Qualcomm (0x5143:0x0a01)", "CPU of Qualcomm (0x5143:0x0000)"), False),
        ({"device_type": "NPU"}, (), False),
    ],
)
def test_what_ran_on_the_processor_is_never_passed_off_as_an_npu(
    options: dict[str, str], devices: tuple[str, ...], minded: bool
) -> None:
    row = with_options(judged("onnxruntime 1.31.1", "npu", [THERE]), options, devices)
    assert ("on this processor" in row.reason) == minded
    refused = with_options(judged("onnxruntime 1.31.1", "npu", [REFUSED]), options, devices)
    assert refused.reason == REFUSED.reason


# --- The samples


@pytest.mark.parametrize("suffix", [".onnx", ".tflite"])
def test_a_sample_knows_right_from_wrong(suffix: str) -> None:
    for sample in samples(suffix):
        expected = sample.expected
        assert sample.agrees(expected)
        assert not sample.agrees(np.zeros_like(expected))
        assert not sample.agrees(expected[:-1])
        assert not sample.agrees(np.roll(expected, 1, axis=1))
        spoilt = expected.copy()
        spoilt[3, 1] = np.nan
        assert not sample.agrees(spoilt)


def test_half_precision_is_right_and_more_is_wrong() -> None:
    sample = samples(".onnx")[1]
    assert sample.agrees(sample.expected.astype(np.float16).astype(np.float32))
    assert not sample.agrees(sample.expected * 1.05)


def test_the_samples_are_those_of_their_script(tmp_path: Path) -> None:
    make(tmp_path)
    with np.load(tmp_path / "answers.npz") as made_arrays, np.load(ASSETS / "answers.npz") as arrays:
        assert sorted(made_arrays) == sorted(arrays)
        for name in arrays:  # the last bits of a matrix product are the processor's
            np.testing.assert_allclose(made_arrays[name], arrays[name], rtol=1e-5, atol=1e-5)
    made, held = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in (tmp_path, ASSETS))
    assert sorted(made) == sorted(held)
    del made["answers.npz"], held["answers.npz"]
    assert made == held


# --- Reasons from a log


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (b"", ""),
        (b"INFO: Attempting to load; cannot tell\nall is well", ""),
        (b"\x1b[1;31mFailed to load /usr/lib/libnpu.so\x1b[m\nERROR: errs", "Failed to load libnpu.so"),
        (b"something failed\nsomething else", "something failed"),
        (b"cannot open " + b"word " * 100, "word " * 31 + "word"),
    ],
)  # fmt: skip
def test_the_reason_is_the_last_line_that_names_a_cause(log: bytes, reason: str) -> None:
    assert reason_in(io.BytesIO(log)).endswith(reason)
    assert len(reason_in(io.BytesIO(log))) <= 160


# --- The machine


def test_libraries_are_found_and_not_opened(tmp_path: Path) -> None:
    (tmp_path / "libedgetpu.so.1").write_text("no library at all")
    (tmp_path / "libother.so").write_text("")
    found = system_findings.libraries([str(tmp_path)])
    assert [(one.path, one.means) for one in found] == [(str(tmp_path / "libedgetpu.so.1"), "Coral Edge TPU")]


def test_the_processor_counts_what_this_process_may_use() -> None:
    found = system_findings.processor()
    assert found.cores >= 1
    assert set(found.features) <= set(system_findings.FEATURES.values())


# --- What could be installed


def test_only_what_fits_the_system_is_offered() -> None:
    def names(system_name: str, machine: str, rows: tuple[Row, ...] = (), libraries: tuple[str, ...] = ()) -> set[str]:
        return {row.accelerator for row in missing(rows, libraries, machine, system_name)}

    assert "coreml" in names("darwin", "arm64")
    assert "coreml" not in names("linux", "x86_64")
    assert "dml" in names("win32", "AMD64")
    assert "vx" in names("linux", "aarch64")
    assert "vx" not in names("linux", "aarch64", libraries=("libvx_delegate.so",))
    assert "qnn" not in names("linux", "x86_64", rows=(Row("onnxruntime", "qnn", "not usable"),))


def test_missing_packages_name_their_extra() -> None:
    rows = missing_packages(["onnxruntime"])
    assert [(row.runtime, row.reason) for row in rows] == [
        ("ai-edge-litert", "pip install 'upwell[litert]'"),
        ("tflite-runtime", "pip install 'upwell[tflite]'"),
    ]


# --- Child processes


@pytest.mark.slow
def test_a_package_that_crashes_is_a_row_and_the_rest_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "ai_edge_litert"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '0'\n")
    (package / "interpreter.py").write_text(
        "import os\nclass Interpreter:\n    def __init__(self, *args, **options):\n        os.abort()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    asked: list[str] = []
    rows = list(runtime_probe.rows_of("ai_edge_litert", asked.append))
    assert [(row.accelerator, row.status) for row in rows] == [("CPU", "not usable"), ("XNNPACK", "not usable")]
    assert {row.reason for row in rows} == {"trying it crashed its process with SIGABRT"}
    assert asked == ["ai_edge_litert"] * 3


@pytest.mark.slow
def test_a_package_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "ai_edge_litert"
    package.mkdir()
    (package / "__init__.py").write_text("import threading\nthreading.Event().wait()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    asked: list[str] = []
    (row,) = runtime_probe.rows_of("ai_edge_litert", asked.append, timeout_s=2.0)
    assert (row.status, row.reason) == ("not usable", "trying it took longer than 2 s")


@pytest.mark.skipif(shutil.which("cc") is None or sys.platform != "linux", reason="needs Linux and a C compiler")
def test_a_library_that_crashes_when_it_is_loaded_is_a_row(tmp_path: Path) -> None:
    library = tmp_path / "libboom.so"
    compile_library("#include <stdlib.h>\n__attribute__((constructor)) static void boom(void) { abort(); }\n", library)
    row = runtime_probe.row_of_library(library, ["ai_edge_litert"])
    assert (row.accelerator, row.reason) == ("libboom.so", "trying it crashed its process with SIGABRT")


def test_a_library_whose_device_is_open_is_left_alone(software_delegate: Path) -> None:
    held = device_lock.hold(str(software_delegate), {}, 1.0)
    try:
        row = runtime_probe.row_of_library(software_delegate, ["ai_edge_litert"])
    finally:
        held.release()
    assert row.status == "found, not probed"
    assert row.reason == "the device is already open"


def test_a_delegate_that_takes_nothing_says_so(software_delegate: Path) -> None:
    row = runtime_probe.row_of_library(software_delegate, ["ai_edge_litert"])
    assert row.status == "not usable"
    assert "took none of the 10 nodes" in row.reason


@pytest.mark.skipif(shutil.which("cc") is None or sys.platform != "linux", reason="needs Linux and a C compiler")
def test_a_library_that_is_neither_says_so(tmp_path: Path) -> None:
    library = tmp_path / "libother.so"
    compile_library("int other(void) { return 0; }", library)
    row = runtime_probe.row_of_library(library, ["ai_edge_litert"])
    assert (row.status, row.reason.partition(" (")[0]) == ("not usable", "it is neither a provider plugin")


def compile_library(source: str, library: Path) -> None:
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=source.encode(), check=True)


# --- The recipes of docs/engines.md

LINES = table(PAGE, "hardware")


@pytest.mark.parametrize("line", LINES, ids=[line[0] for line in LINES])
def test_recipes_are_keys_of_a_model_s_edge(line: list[str], tmp_path: Path) -> None:
    keys = SPAN.findall(line[3])
    assert ", ".join(f"`{key}`" for key in keys) == line[3]
    keys = keys if keys[0].startswith("file: ") else ["bundle: models/digits", *keys]
    file = tmp_path / "agent.yaml"
    file.write_text("\n      ".join(["models:\n  digits:\n    edge:", *keys]))
    edge = load_yaml(file, AgentConfig).models["digits"].edge
    assert edge is not None
    assert edge.wanted_accelerators


def test_each_recipe_is_on_the_page_and_says_what_ran() -> None:
    written = {name for line in LINES for name in re.findall(r"provider: (\w+)", line[3])}
    assert {recipe.accelerator for recipe in RECIPES} - {"rknpu"} <= written
    executed = {name for line in LINES if line[1] != "untested" for name in re.findall(r"provider: (\w+)", line[3])}
    assert executed == {"qnn", "openvino", "litert_npu"}
    assert all(line[1].startswith("executed ") for line in LINES if line[1] != "untested")

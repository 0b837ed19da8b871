"""The rows of the matrix: in each environment the same questions to its accelerator, through the agent's own loading.

`make test-accelerators` runs this once per environment; elsewhere everything here is skipped.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.accelerators.environment import VARIABLE
from tests.accelerators.record import record
from upwell.edge.runtimes.base import Runtime
from upwell.edge.runtimes.placement import AcceleratorNotUsable
from upwell.edge.runtimes.runtime_loader import coverage_of, load_runtime
from upwell.edge.runtimes.runtime_options import AcceleratorOptions, RuntimeOptions
from upwell.shared.errors import ConfigError
from upwell.shared.tensors import Array
from upwell.tools.demo.digit_data import Digits, heldout
from upwell.tools.devices.sample_models import samples

HERE = os.environ.get(VARIABLE, "")
if not HERE:
    pytest.skip(f"{VARIABLE} is not set", allow_module_level=True)

LEAST_EQUAL = 0.99
"""Share of pictures that both read alike: int8 kernels may differ by a step, which turns the odd close case."""
Options = dict[str, str | int | float | bool]


@dataclass(frozen=True)
class Case:
    """An accelerator of one environment.

    `keeps` says that what it compiles is kept for the next start; `absent` are options with which it asks for a device
    that is not here, and words that the refusal must hold.
    """

    environment: str
    row: str
    suffix: str
    provider: str
    options: Options
    packages: Sequence[str]
    source: str
    absent: tuple[Options, str]
    keeps: bool = False
    package: Any = None

    def runtime_options(self) -> RuntimeOptions:
        return RuntimeOptions(threads=1, package=self.package)

    def accelerator(self, library: Path | None = None, **changed: Any) -> AcceleratorOptions:
        options = {**self.options, **changed}
        require = "prefer" if changed else "must"
        return AcceleratorOptions(provider=self.provider, require=require, library=library, options=options)


def delegate(package: Any, distribution: str) -> Case:
    return Case(
        "tflite", f"a software delegate in {distribution}", ".tflite", "software", {"claim": "all"},
        (distribution, "numpy"), "delegate walk", ({"device": "/dev/none"}, "device"), package=package,
    )  # fmt: skip


CASES = (
    Case(
        "qnn", "QNN, HTP backend on x86-64 (no device)", ".onnx", "qnn",
        {"backend_type": "htp", "offload_graph_io_quantization": 0}, ("onnxruntime", "onnxruntime-qnn"),
        "graph assignment", ({"backend_type": "gpu"}, "none of the"), keeps=True,
    ),
    Case(
        "openvino", "OpenVINO provider, CPU device", ".onnx", "openvino", {"device_type": "CPU"},
        ("onnxruntime-openvino",), "graph assignment", ({"device_type": "NPU"}, "no device 'NPU'"),
    ),
    Case(
        "ort_profile", "OpenVINO provider, CPU device, in ONNX Runtime before 1.24", ".onnx", "openvino",
        {"device_type": "CPU"}, ("onnxruntime-openvino",), "profile", ({"device_type": "NPU"}, "no device 'NPU'"),
    ),
    Case(
        "litert_npu", "LiteRT NPU dispatch onto OpenVINO's CPU device", ".tflite", "litert_npu",
        {"vendor": "intel_openvino", "graph_backend": "CPU"}, ("ai-edge-litert", "openvino"), "compiled model",
        ({"graph_backend": "NPU"}, "did not compile"),
    ),
    delegate("ai_edge_litert", "ai-edge-litert"),
    delegate("tflite_runtime", "tflite-runtime"),
)  # fmt: skip

HERE_CASES = [case for case in CASES if case.environment == HERE]
each_case = pytest.mark.parametrize("case", HERE_CASES, ids=[case.row for case in HERE_CASES])


@pytest.fixture
def library(case: Case, request: pytest.FixtureRequest) -> Path | None:
    return request.getfixturevalue("software_delegate") if case.provider == "software" else None


@pytest.fixture(scope="module")
def digits() -> Digits:
    return heldout()


def model_of(case: Case) -> Path:
    """The demo's int8 digit reader for one picture."""
    return samples(case.suffix)[0].path


def read(runtime: Runtime, digits: Digits) -> Array:
    """The logits of every picture, sent one by one: FP32 [n, 10]."""
    (taken,), (given,) = runtime.inputs, runtime.outputs
    rows = (digits.images / 255).astype(np.float32)[:, None, None]
    return np.concatenate([runtime.run({taken.name: row})[given.name] for row in rows])


@each_case
def test_every_node_is_there_and_the_answers_are_the_cpus(case: Case, library: Path | None, digits: Digits) -> None:
    model, options = model_of(case), case.runtime_options()
    there, here = load_runtime(model, options, case.accelerator(library)), load_runtime(model, options)
    placement = there.placement
    assert placement.nodes_on_accelerator == placement.nodes > 0
    assert placement.left_on_cpu == ()
    read_there, read_here = read(there, digits), read(here, digits)
    equal = int((read_there.argmax(axis=1) == read_here.argmax(axis=1)).sum())
    assert equal >= LEAST_EQUAL * len(digits.labels)
    assert there.placement == placement, "it was lost while running"
    right = float((read_there.argmax(axis=1) == digits.labels).mean())
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in case.packages)
    record(case.row, "with", versions)
    record(case.row, "executed", f"int8 digits, {len(digits.labels)} pictures")
    record(case.row, "agreement", f"{equal} of {len(digits.labels)} as the CPU reads them, {right:.1%} right")


@each_case
def test_coverage_says_the_same(case: Case, library: Path | None) -> None:
    found = coverage_of(model_of(case), case.runtime_options(), case.accelerator(library))
    assert found.source == case.source
    assert found.node_share == 1
    record(case.row, "placement", f"{len(found.taken)} of {len(found.nodes)}, by {found.source}")


@each_case
def test_without_the_device_it_says_so(case: Case, library: Path | None) -> None:
    options, word = case.absent
    with pytest.raises(AcceleratorNotUsable, match=word):
        load_runtime(model_of(case), case.runtime_options(), case.accelerator(library, **options))
    asked = ", ".join(f"`{key}: {value}`" for key, value in options.items())
    record(case.row, "no device", f"{asked} refused")


@each_case
def test_without_the_library_it_says_so(case: Case, tmp_path: Path) -> None:
    if case.provider != "software":
        pytest.skip("its library comes with its package")
    missing = tmp_path / "libmissing.so"
    with pytest.raises(AcceleratorNotUsable, match="libmissing"):
        load_runtime(model_of(case), case.runtime_options(), case.accelerator(missing))
    record(case.row, "no device", "a missing library refused")


@each_case
def test_what_it_compiled_is_taken_again(case: Case, digits: Digits, tmp_path: Path) -> None:
    if not case.keeps:
        pytest.skip("it keeps nothing")
    few = Digits(digits.images[:20], digits.labels[:20])
    first = load_runtime(model_of(case), case.runtime_options(), case.accelerator(), cache_dir=tmp_path)
    read_first = read(first, few)
    first.close()
    kept = contents(tmp_path)
    assert kept
    again = load_runtime(model_of(case), case.runtime_options(), case.accelerator(), cache_dir=tmp_path)
    assert contents(tmp_path) == kept
    assert again.placement == first.placement
    np.testing.assert_array_equal(read(again, few), read_first)
    record(case.row, "reload", "kept, loaded again, same bits")


def contents(folder: Path) -> dict[str, str]:
    """Every file below and its digest."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


# --- What needs no accelerator: the CPU of each runtime, by `upwell devices`

PROCESSOR_ROWS = {
    "qnn": [("onnxruntime", "CPU")],
    "openvino": [("onnxruntime", "CPU")],
    "ort_profile": [("onnxruntime", "CPU")],
    "litert_npu": [("ai-edge-litert", "CPU"), ("ai-edge-litert", "XNNPACK")],
    "tflite": [
        ("onnxruntime", "CPU"), ("ai-edge-litert", "CPU"), ("ai-edge-litert", "XNNPACK"),
        ("tflite-runtime", "CPU"), ("tflite-runtime", "XNNPACK"),
    ],
}  # fmt: skip
IN_THE_MATRIX = {("tflite", "CPU", "onnxruntime"), ("tflite", "XNNPACK", "ai-edge-litert"),
                 ("tflite", "XNNPACK", "tflite-runtime")}  # fmt: skip


@pytest.fixture(scope="module")
def listed() -> list[dict[str, Any]]:
    """The rows of `upwell devices --json`."""
    code = "import typer; from upwell.tools.devices.cli import devices; typer.run(devices)"
    done = subprocess.run([sys.executable, "-c", code, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)["accelerators"]
    return rows


def test_devices_finds_what_runs_here(listed: list[dict[str, Any]]) -> None:
    executed = {(row["runtime"].partition(" ")[0], row["accelerator"]) for row in listed if row["status"] == "executed"}
    expected = {*PROCESSOR_ROWS[HERE], *((runtime_of(case), case.provider) for case in HERE_CASES)}
    assert executed == {pair for pair in expected if pair[1] != "software"}
    for row in listed:
        runtime = row["runtime"].partition(" ")[0]
        if (HERE, row["accelerator"], runtime) in IN_THE_MATRIX:
            name = f"{runtime}, {row['accelerator']}"
            record(name, "with", row["runtime"])
            record(name, "executed", "the samples of `upwell devices`")
            for check in row["checks"]:
                record(name, "placement", f"{check['model']}: {check['on_accelerator']} of {check['nodes']}")
            record(name, "agreement", "as expected")


def runtime_of(case: Case) -> str:
    return "onnxruntime" if case.suffix == ".onnx" else "ai-edge-litert"


@pytest.mark.skipif(HERE != "tflite", reason="openvino is installed, or ai-edge-litert is not")
def test_litert_without_openvino_says_so() -> None:
    case = next(case for case in CASES if case.provider == "litert_npu")
    with pytest.raises(AcceleratorNotUsable, match=r"libopenvino\.so"):
        load_runtime(model_of(case), case.runtime_options(), case.accelerator())
    record(case.row, "no device", "without openvino refused")


@pytest.mark.skipif(HERE != "litert_npu", reason="onnxruntime is installed")
def test_a_missing_runtime_is_named() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'upwell\[onnx\]'"):
        load_runtime(samples(".onnx")[0].path)

"""`upwell devices` as a person runs it."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from upwell.shared.errors import ConfigError
from upwell.tools.devices.cli import devices, folded
from upwell.tools.devices.runtime_probe import Row

TFLITE_RUNTIME = pytest.mark.tflite_runtime


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    made = typer.Typer(pretty_exceptions_enable=False)
    made.command()(devices)
    return made


@pytest.fixture(scope="module")
def document(app: typer.Typer) -> dict[str, Any]:
    """What `upwell devices --json` prints in the tested set."""
    result = CliRunner().invoke(app, ["--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def row(document: dict[str, Any], distribution: str, accelerator: str) -> dict[str, Any]:
    runtime = f"{distribution} {version(distribution)}"
    (found,) = [
        one for one in document["accelerators"] if (one["runtime"], one["accelerator"]) == (runtime, accelerator)
    ]
    return dict(found)


def taken(found: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {check["model"]: (check["on_accelerator"], check["nodes"]) for check in found["checks"]}


@pytest.mark.parametrize(
    "distribution", ["onnxruntime", "ai-edge-litert", pytest.param("tflite-runtime", marks=TFLITE_RUNTIME)]
)
def test_each_runtime_executes_on_the_cpu(document: dict[str, Any], distribution: str) -> None:
    found = row(document, distribution, "CPU")
    assert found["status"] == "executed"
    assert [check["agrees"] for check in found["checks"]] == [True, True]


@pytest.mark.parametrize(
    ("distribution", "int8"), [("ai-edge-litert", 10), pytest.param("tflite-runtime", 1, marks=TFLITE_RUNTIME)]
)
def test_xnnpack_is_what_it_takes(document: dict[str, Any], distribution: str, int8: int) -> None:
    """tflite-runtime's takes float32 models; of an int8 one, the quantization of its input alone."""
    assert taken(row(document, distribution, "XNNPACK")) == {"int8": (int8, 10), "float": (3, 3)}


def test_what_needs_a_network_or_a_vendor_is_offered_and_not_executed(document: dict[str, Any]) -> None:
    assert row(document, "onnxruntime", "azure")["status"] == "offered, not executed"
    npus = [one for one in document["accelerators"] if one["accelerator"] == "litert_npu"]
    assert {one["options"]["vendor"] for one in npus} >= {"intel_openvino", "qualcomm"}
    assert all(one["status"] != "executed" for one in npus)
    refused = [one for one in npus if one["options"]["vendor"] == "intel_openvino"]
    assert all("libopenvino" in one["reason"] for one in refused)


def test_nothing_else_is_said_to_run(document: dict[str, Any]) -> None:
    executed = {one["accelerator"] for one in document["accelerators"] if one["status"] == "executed"}
    assert executed == {"CPU", "XNNPACK"}
    how = {one["accelerator"]: one["reason"] for one in document["accelerators"] if one["status"] == "not installed"}
    assert "upwell[qnn]" in how["qnn"]
    assert "environment of its own" in how["openvino"]


def test_a_person_gets_a_table(app: typer.Typer, software_delegate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("upwell.tools.devices.cli.installed", lambda: ["ai_edge_litert"])
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["--library", str(software_delegate)])
    assert result.exit_code == 0
    head, *lines = result.stdout.splitlines()
    assert "cores usable" in head
    said = [line for line in lines if software_delegate.name in line]
    assert said
    assert "not usable" in said[0]
    assert any(line.startswith("Not installed") for line in lines)


def test_a_row_stands_for_all_that_differ_in_an_option_alone() -> None:
    def npu(reason: str, **options: str) -> Row:
        return Row("ai-edge-litert 2.1.6", "litert_npu", "offered, not executed", options=options, reason=reason)

    vendors = [npu("no library", vendor=name) for name in ("google_tensor", "mediatek")]
    ways = [npu("no device", vendor="intel_openvino", graph_backend=name) for name in ("NPU", "GPU")]
    rows = [vendors[0], *ways, vendors[1], npu("no device", vendor="intel_openvino")]
    assert folded(rows) == [vendors, ways, rows[-1:]]


def test_eighty_columns_name_every_vendor(app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("upwell.tools.devices.cli.installed", lambda: ["ai_edge_litert"])
    monkeypatch.setattr("upwell.tools.terminal.PIPE_COLUMNS", 80)
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 0
    assert "…" not in result.stdout
    rows = [line for line in result.stdout.splitlines() if line.startswith("  litert_npu ")]
    assert len(rows) == 2  # those without a library that runs what they compile, and OpenVINO
    assert {"mediatek,", "qualcomm,", "vendor=intel_openvino", "graph_backend=NPU,"} <= set(result.stdout.split())


def test_a_library_that_is_not_there_is_wrong_use(app: typer.Typer, tmp_path: Path) -> None:
    missing = tmp_path / "libnone.so"
    result = CliRunner().invoke(app, ["--library", str(missing)])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == f"{missing}: no such file; expected a library"

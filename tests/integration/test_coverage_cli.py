"""`upwell model coverage` as a person runs it, with the software delegate."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from ai_edge_litert.schema_py_generated import BuiltinOperator
from typer.testing import CliRunner, Result

from upwell.edge.runtimes.placement import Coverage, NodeCover
from upwell.shared.errors import ConfigError
from upwell.tools.bundle.coverage_cli import coverage
from upwell.tools.devices.sample_models import samples

CONVOLUTIONS = f"{BuiltinOperator.CONV_2D},{BuiltinOperator.DEPTHWISE_CONV_2D}"
DIGITS = samples(".tflite")[0].path


class Cover:
    """Runs `upwell model coverage` on the digit reader with the software delegate."""

    def __init__(self, library: Path) -> None:
        self._library = library
        self._app = typer.Typer(pretty_exceptions_enable=False)
        self._app.command()(coverage)

    def __call__(self, *arguments: str, **options: object) -> Result:
        pairs = [word for key, value in options.items() for word in ("--option", f"{key}={value}")]
        command = [str(DIGITS), "--accelerator", "software", "--library", str(self._library), *pairs, *arguments]
        return CliRunner(env={"COLUMNS": "160"}).invoke(self._app, command)


@pytest.fixture
def cover(software_delegate: Path) -> Cover:
    return Cover(software_delegate)


def reported(path: Path) -> set[int]:
    """The nodes that the delegate itself says it claimed."""
    return {int(word) for line in path.read_text().splitlines() for word in line.replace(",", " ").split()}


def test_the_json_is_what_the_delegate_took(cover: Cover, tmp_path: Path) -> None:
    report = tmp_path / "claimed.txt"
    result = cover("--json", claim=CONVOLUTIONS, report=report)
    assert result.exit_code == 0
    found: dict[str, Any] = json.loads(result.stdout)
    assert (found["source"], found["nodes"], found["nodes_on_accelerator"]) == ("delegate walk", 10, 2)
    assert found["partitions"] == 2
    there = {index for index, node in enumerate(found["per_node"]) if node["partition"] is not None}
    assert there == reported(report)
    works = [node["work"] for node in found["per_node"]]
    assert found["work_share"] == pytest.approx(sum(works[index] for index in there) / sum(works))
    assert found["node_share"] == 0.2


def test_the_table_names_what_stayed(cover: Cover) -> None:
    result = cover(claim=CONVOLUTIONS)
    assert result.exit_code == 0
    assert "2 of 10 (20.0%)" in result.stdout
    left = [line for line in result.stdout.splitlines() if line.rstrip().endswith("%") and "_" in line]
    assert [line.split()[0] for line in left if "FULLY_CONNECTED" in line] == ["8"]
    assert not any("CONV_2D" in line.split() for line in left)


def test_everything_there_leaves_nothing_to_name(cover: Cover) -> None:
    result = cover("--at-least", "100%", claim="all")
    assert result.exit_code == 0
    assert "10 of 10 (100.0%)" in result.stdout
    assert "left on the CPU" not in result.stdout


def test_too_little_is_a_failed_check(cover: Cover) -> None:
    result = cover("--at-least", "90%", claim=CONVOLUTIONS)
    assert result.exit_code == 1
    assert result.stderr == "20.0% of the nodes are on software; --at-least requires 90%\n"
    assert cover("--at-least", "20%", claim=CONVOLUTIONS).exit_code == 0


@pytest.mark.slow
def test_a_batch_is_fixed_for_it(cover: Cover) -> None:
    assert cover("--batch", "1", claim="all").exit_code == 0  # as the model has it
    result = cover("--batch", "2", claim="all")
    assert "`batch: 2` cannot be used: the model has no open batch dimension" in str(result.exception)


def test_what_a_library_prints_is_no_part_of_the_json(software_delegate: Path) -> None:
    """QNN's does, and C writes what it printed at the end of the process unless it is told to before."""
    options = [f"--library={software_delegate}", "--option=claim=all", "--option=report=/dev/stdout"]
    command = ["upwell", "model", "coverage", str(DIGITS), "--accelerator=software", "--json", *options]
    script = f"import sys; from upwell.tools.cli import main; sys.argv = {command!r}; main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["nodes_on_accelerator"] == 10
    script = "import ctypes; from upwell.tools.terminal import quiet\nwith quiet(): ctypes.CDLL(None).puts(b'hello')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == ""


@pytest.mark.slow
def test_a_long_name_of_a_node_is_whole(cover: Cover, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "model/encoder/layer_0/attention/self/query/MatMul" * 4
    left = Coverage("npu", "onnxruntime", "profile", [NodeCover(name, "MatMul", None, 1.0)])
    monkeypatch.setattr("upwell.tools.bundle.coverage_cli.coverage_of", lambda *_: left)
    assert name in "".join(line.split(" ")[0] for line in cover(claim="all").stdout.splitlines())


@pytest.mark.slow
def test_nothing_there_is_an_answer_too(cover: Cover) -> None:
    result = cover("--json", claim=BuiltinOperator.LSTM)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["nodes_on_accelerator"] == 0


@pytest.mark.parametrize("moment", ["load", "prepare"])
def test_a_delegate_that_crashes_is_one_sentence(cover: Cover, moment: str) -> None:
    result = cover(claim="all", crash=moment)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "crashed the probing process with SIG" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_delegate_that_fails_is_one_sentence(cover: Cover) -> None:
    result = cover(claim="all", fail_prepare=1)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"software cannot be used for {DIGITS}: ")


def test_a_provider_that_is_not_there_is_one_sentence() -> None:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(coverage)
    model = samples(".onnx")[0].path
    result = CliRunner().invoke(app, [str(model), "--accelerator", "qnn"])
    assert result.exit_code == 1
    assert "QNNExecutionProvider" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--option", "claim"], "expected KEY=VALUE"),
        (["--option", "=1"], "expected KEY=VALUE"),
        (["--runtime", "torch"], "is not one of"),
        (["--package", "tensorflow"], "is not one of"),
        (["--runtime", "onnx", "--package", "tflite_runtime"], "--package: only for --runtime tflite"),
        (["--at-least", "much"], "--at-least"),
        (["--accelerator", ""], "--accelerator: expected the name of a provider"),
    ],
)
def test_wrong_use(cover: Cover, arguments: list[str], said: str) -> None:
    result = cover(*arguments)
    assert isinstance(result.exception, ConfigError) or result.exit_code == 2
    assert said in result.stderr + str(result.exception)

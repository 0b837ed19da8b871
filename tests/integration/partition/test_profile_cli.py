"""`upwell partition profile` on real models in real runtimes. What a run takes is never judged."""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from onnx import helper
from typer.testing import CliRunner, Result

from tests.models.legal_cuts import prefix_cuts
from tests.models.residual_digits import build_residual_digits
from tests.unit.models_for_tests import save, tensor
from tests.unit.tflite_graphs_for_tests import mobile
from upwell.shared.errors import ConfigError
from upwell.shared.partition.cost_graph import TierLink
from upwell.shared.partition.graph_contraction import contract
from upwell.shared.partition.read_graph import read_graph
from upwell.shared.partition.tier_profile import Profile, combine, load_profile
from upwell.tools.partition.profile_cli import profile

QUICK = ("--runs", "3", "--budget", "1s")

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(profile)


def run(model: Path, *arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(app, [str(model), *QUICK, *arguments])


def profiled(model: Path, *arguments: str) -> tuple[Profile, Any]:
    """The profile as it was written, and what was printed; every file is one that `plan` takes."""
    target = model.with_name("profile.json")
    result = run(model, "--json", "--out", str(target), *arguments)
    assert result.exception is None, result.exception
    return load_profile(target), json.loads(result.stdout)


def refused(model: Path, *arguments: str) -> str:
    result = run(model, *arguments)
    assert isinstance(result.exception, ConfigError), result.output
    return str(result.exception)


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    path = tmp_path / "digits.onnx"
    path.write_bytes(build_residual_digits(dynamic_batch=True).SerializeToString())
    return path


@pytest.mark.parametrize("tier", ["edge", "cloud"])
def test_a_profile_holds_both_ends_times_in_order_and_the_file_it_is_of(digits: Path, tier: str) -> None:
    found, printed = profiled(digits, "--tier", tier)
    assert (found.tier, found.model.name, found.model.rows) == (tier, "digits.onnx", 1)
    assert found.model.digest == hashlib.sha256(digits.read_bytes()).hexdigest()
    assert printed["profile"] == json.loads((digits.parent / "profile.json").read_text())
    assert found.runtime.version.startswith("onnxruntime ")
    assert found.machine.simulated == ""
    nodes = [point.nodes for point in found.points]
    assert nodes[0] == 0
    assert nodes[-1] == len(found.nodes)
    times = [point.corrected_s for point in found.points]
    in_order = times if tier == "edge" else times[::-1]
    assert in_order[0] == 0.0 < in_order[1]
    assert all(one <= other for one, other in itertools.pairwise(in_order))
    measured = [point.measured for point in found.points if point.corrected_s]
    assert all(one.runs == 3 and 0 < one.p10_s <= one.median_s <= one.p90_s for one in measured)
    assert found.points[0].tensors == found.inputs == ("picture",)
    assert found.points[-1].tensors == ()


def test_both_sides_have_the_same_graph_and_can_be_combined(digits: Path) -> None:
    edge, _ = profiled(digits, "--points", "all")
    cloud, _ = profiled(digits, "--points", "all", "--tier", "cloud")
    legal = [0, *prefix_cuts(contract(read_graph(digits))), len(edge.nodes)]
    assert [point.nodes for point in edge.points] == [point.nodes for point in cloud.points] == legal
    costs = combine(edge, cloud, TierLink(bps=1e6))
    total_s = sum(node.cost_s["edge"] for node in costs.nodes)
    assert total_s == pytest.approx(edge.points[-1].corrected_s)
    assert any(len(point.tensors) > 1 for point in edge.points)  # it is a residual network


def test_cutting_is_compared_with_the_whole(digits: Path) -> None:
    _, printed = profiled(digits, "--points", "5")
    assert len(printed["cutting"]) == 3
    for one in printed["cutting"]:
        assert one["overhead"] == pytest.approx((one["head_s"] + one["tail_s"]) / one["whole_s"] - 1)
    assert printed["left_out"] == []
    assert printed["p90_over_p10"] >= 1
    assert profiled(digits, "--points", "2")[1]["cutting"] == []


def test_the_number_of_points_is_what_was_asked_for(digits: Path) -> None:
    for points in (2, 3, 5):
        assert len(profiled(digits, "--points", str(points))[0].points) == points


def test_bytes_are_those_of_the_rows(digits: Path) -> None:
    one, _ = profiled(digits, "--points", "2")
    many, _ = profiled(digits, "--points", "3", "--rows", "5")
    assert many.model.rows == 5
    assert many.tensors["picture"].bytes == 5 * 8 * 8 * 4
    for name, facts in one.tensors.items():
        assert many.tensors[name].bytes == 5 * (facts.bytes or 0)


@pytest.mark.parametrize("tier", ["edge", "cloud"])
def test_a_tflite_model_is_measured_in_the_edge_runtimes_on_either_side(tmp_path: Path, tier: str) -> None:
    model = mobile(tmp_path, blocks=2)
    found, _ = profiled(model, "--tier", tier, "--points", "5")
    assert (found.tier, found.model.format, found.runtime.name) == (tier, "tflite", "tflite")
    assert found.model.digest == hashlib.sha256(model.read_bytes()).hexdigest()
    assert len(found.points) == 5
    assert all(found.tensors[name].bytes for point in found.points for name in point.tensors)
    text = run(model, "--tier", tier, "--points", "2").output
    assert ("measured in the runtimes of the edge" in text) == (tier == "cloud")


def test_a_simulated_device_is_called_so_in_file_and_table(digits: Path) -> None:
    found, _ = profiled(digits, "--stretch", "8", "--points", "3")
    assert found.machine.simulated == "times of this machine multiplied by 8"
    result = run(digits, "--stretch", "8", "--points", "3")
    assert "simulated device: times of this machine multiplied by 8" in result.output
    assert (digits.parent / "digits.edge.json").is_file()


def test_the_table_shows_measured_beside_corrected(digits: Path) -> None:
    result = run(digits)
    assert result.exception is None, result.exception
    for text in ("median ms", "p10–p90", "corrected ms", "(all in the cloud)", "(all on the edge)", "B in 2", "wrote "):
        assert text in result.output


@pytest.mark.slow
def test_an_accelerator_is_named_with_the_evidence_for_it(tmp_path: Path, software_delegate: Path) -> None:
    model = mobile(tmp_path, blocks=1)
    accelerator = ("--accelerator", "software", "--library", str(software_delegate), "--option", "claim=3,4")
    found, _ = profiled(model, "--points", "3", *accelerator)
    assert found.runtime.accelerator == "software"
    whole, head = found.points[-1], found.points[1]
    assert whole.placement.endswith(f" of {len(read_graph(model).nodes)} nodes")
    assert head.placement
    assert found.points[0].placement == ""
    assert "on the accelerator" in run(model, "--points", "2", *accelerator).output


def test_an_accelerator_that_cannot_be_used_is_the_cpu_and_says_so(digits: Path) -> None:
    found, _ = profiled(digits, "--points", "2", "--accelerator", "nonesuch")
    assert found.points[-1].placement.startswith("nothing: ")
    assert "nonesuch" in found.points[-1].placement


def test_given_inputs_are_used_by_either_name_and_checked(digits: Path) -> None:
    given = digits.parent / "given.npz"
    np.savez(given, picture=np.zeros((7, 1, 8, 8), np.float32))
    assert profiled(digits, "--points", "2", "--inputs", str(given), "--rows", "4")[0].model.rows == 4
    assert "has 7 rows, but --rows is 9" in refused(digits, "--inputs", str(given), "--rows", "9")
    for arrays, problem in (
        ({"photo": np.zeros(1)}, "no input 'photo'; its inputs are 'picture'"),
        ({"picture": np.zeros((1, 1, 8, 8))}, "is float64; the input takes float32"),
        ({"picture": np.zeros((1, 1, 8, 9), np.float32)}, "is [1, 1, 8, 9]; the input takes"),
    ):
        np.savez(given, **arrays)
        assert problem in refused(digits, "--inputs", str(given))
    given.write_bytes(b"PK no archive")
    assert "cannot be read as an .npz" in refused(digits, "--inputs", str(given))


def test_an_open_dimension_that_is_no_batch_takes_its_size_from_the_given_inputs(tmp_path: Path) -> None:
    nodes = [helper.make_node("Gemm", ["x", "w"], ["y"], name="one"), helper.make_node("Softmax", ["y"], ["z"])]
    nodes[0] = helper.make_node("MatMul", ["x", "w"], ["y"], name="one")
    ports = [tensor("x", ["rows", "length", 8])], [tensor("z", ["rows", "length", 4])]
    weights = {"w": np.ones((8, 4), np.float32)}
    model = save(tmp_path / "open.onnx", nodes, *ports, weights)
    assert "dimension 'length' of input 'x' is open" in refused(model)
    np.savez(tmp_path / "given.npz", x=np.ones((1, 50, 8), np.float32))
    found, _ = profiled(model, "--inputs", str(tmp_path / "given.npz"))
    assert found.tensors["x"].bytes == 50 * 8 * 4


def test_what_cannot_be_is_refused_before_anything_is_measured(digits: Path, tmp_path: Path) -> None:
    assert "folder does not exist" in refused(digits, "--out", str(tmp_path / "none" / "p.json"))
    assert "applies only to the device" in refused(digits, "--tier", "cloud", "--accelerator", "qnn")
    (tmp_path / "model.txt").write_text("no model")
    assert "expected .onnx, .tflite or .pt2" in refused(tmp_path / "model.txt")
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x07broken")
    refused(tmp_path / "broken.onnx")
    for wrong in (
        ("--points", "1"),
        ("--points", "some"),
        ("--stretch", "0.5"),
        ("--stretch", "8", "--tier", "cloud"),
        ("--option", "htp"),
        ("--library", "lib.so"),
        ("--budget", "soon"),
    ):
        assert refused(digits, *wrong).startswith(f"{wrong[0]}: ")
    assert run(digits, "--tier", "fog").exit_code == 2
    assert list(tmp_path.glob("*.json")) == []


@pytest.mark.parametrize(
    ("tier", "package", "extra"),
    [
        ("edge", "onnxruntime", "onnx"),
        pytest.param("cloud", "onnxruntime", "cloud", marks=pytest.mark.exhaustive),
        pytest.param("edge", "onnx", "partition", marks=pytest.mark.exhaustive),
    ],
)
def test_a_package_that_is_missing_is_named_with_the_extra_that_brings_it(
    digits: Path, tier: str, package: str, extra: str
) -> None:
    script = f"import sys; sys.modules[{package!r}] = None; from upwell.tools.entry import main; main()"
    command = [sys.executable, "-c", script, "partition", "profile", str(digits), "--tier", tier]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode in (1, 2), done.stdout) == (True, "")
    assert package in done.stderr
    assert f"pip install 'upwell[{extra}]'" in done.stderr

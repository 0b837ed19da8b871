"""`upwell partition verify` on halves of ours and on halves that a person made: what fits, what holds, what is said."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner, Result

from tests.models.make_mobilenet_tflite import PATH as MOBILENET
from tests.models.residual_digits import build_residual_digits
from tests.unit.partition.tflite_parts_for_tests import early_exit
from upwell.shared.errors import ConfigError
from upwell.shared.partition.graph_contraction import contract
from upwell.shared.partition.read_graph import read_graph
from upwell.shared.partition.split.cut_choice import cut_at
from upwell.shared.partition.split.split_model import UnsplitModel
from upwell.shared.partition.split.split_writer import write_split
from upwell.tools.partition.verify_cli import verify

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(verify)


def run(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(app, [str(one) for one in arguments])


def said(code: int, *arguments: object) -> Any:
    """What it prints with `--json`, where it ends with this exit code."""
    result = run(*arguments, "--json")
    assert result.exit_code == code, (result.output, result.exception)
    document = json.loads(result.stdout)
    assert document["holds"] == (code == 0)
    return document


def one_of(document: Any) -> Any:
    (half,) = document["halves"]
    return half


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, ConfigError), result.output
    return str(result.exception)


def written(model: Path, out: Path, *cuts: str) -> Path:
    """The folder with the halves of these cuts."""
    graph = contract(read_graph(model))
    whole = UnsplitModel.open(model, graph, "model")
    chosen = [cut_at(cut, graph) for cut in cuts]
    write_split(out, whole, ((one, whole.divide(one.edge)) for one in chosen))
    return out


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("digits") / "digits.onnx"
    onnx.save(build_residual_digits(), path)
    return path


@pytest.fixture(scope="module")
def split_digits(digits: Path) -> Path:
    return written(digits, digits.with_name("split"), "2", "3", "4")


def halves_in(folder: Path, cut: str) -> tuple[Path, Path]:
    """Head and tail of a cut."""
    (tail,) = folder.glob(f"tails/*--{cut}--*/1/model.*")
    (head,) = folder.glob(f"heads/{cut}/model.*")
    return head, tail


def dense(path: Path, given: Mapping[str, int], made: Mapping[str, int], seed: int = 0) -> Path:
    """Each output, FP32 [1, its size], is tanh of the sum of products of the inputs, which are FP32 [1, their size]."""
    random = np.random.default_rng(seed)
    nodes, weights = [], []
    for name, size in made.items():
        sums = []
        for source, width in given.items():
            matrix = numpy_helper.from_array(
                random.standard_normal((width, size)).astype(np.float32), f"{source}_{name}"
            )
            weights.append(matrix)
            nodes.append(helper.make_node("MatMul", [source, matrix.name], [f"{matrix.name}_out"]))
            sums.append(f"{matrix.name}_out")
        nodes.append(helper.make_node("Sum", sums, [f"{name}_sum"]))
        nodes.append(helper.make_node("Tanh", [f"{name}_sum"], [name]))
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name, size in side.items()]
        for side in (given, made)
    )
    graph = helper.make_graph(nodes, "dense", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


# --- folders of ours


def test_a_folder_of_an_int8_model_is_bit_equal(tmp_path: Path) -> None:
    folder = written(MOBILENET, tmp_path / "split", "10", "33")
    document = said(0, folder, "--whole", MOBILENET, "--at-most", 0)
    assert [one["cut"] for one in document["halves"]] == ["c10", "c33"]
    for one in document["halves"]:
        assert one["outputs"] == [{"name": "scores", "equal": True, "error": 0.0}]
        assert one["matched_by"] == "name"
        assert all(tensor["datatype"] == "INT8" for tensor in one["crossing"])
        assert all(tensor["size_bytes"] == np.prod(tensor["shape"]) for tensor in one["crossing"])
        assert all(seconds > 0 for seconds in one["seconds"].values())
    assert len(document["halves"][0]["crossing"]) == 2


def test_a_folder_of_a_float_model_holds_within_the_error(digits: Path, split_digits: Path) -> None:
    document = said(0, split_digits, "--whole", digits, "--runs", 3, "--seed", 7)
    assert [one["cut"] for one in document["halves"]] == ["c2", "c3", "c4"]
    assert {one["runs"] for one in document["halves"]} == {3}
    assert all(one["outputs"][0]["error"] <= 1e-5 for one in document["halves"])


def test_a_folder_of_another_model_or_without_its_files_is_refused(
    digits: Path, split_digits: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.onnx"
    onnx.save(build_residual_digits(seed=1), other)
    assert "split from another model" in refused(split_digits, "--whole", other)
    assert "split.json" in refused(tmp_path)
    broken = written(digits, tmp_path / "split", "2")
    halves_in(broken, "c2")[1].unlink()
    assert "there is no file" in refused(broken)
    (broken / "split.json").write_text("{}")
    assert "not a list of halves" in refused(broken)
    assert run(split_digits, digits).exit_code == 2
    assert run(digits).exit_code == 2


# --- two files


def test_without_the_whole_it_says_that_they_fit_and_run(split_digits: Path) -> None:
    found = one_of(said(0, *halves_in(split_digits, "c2")))
    assert (found["outputs"], found["repeatable"], found["seconds"]["whole"]) == ([], True, None)
    assert len(found["crossing"]) == 2


def test_a_tail_of_another_cut_does_not_fit(digits: Path, split_digits: Path) -> None:
    head, tail = halves_in(split_digits, "c3")[0], halves_in(split_digits, "c4")[1]
    found = one_of(said(1, head, tail, "--whole", digits))
    assert "do not match" in found["problem"] or "more than one way" in found["problem"]


def test_a_tail_with_other_weights_does_not_hold(digits: Path, split_digits: Path, tmp_path: Path) -> None:
    head, tail = halves_in(split_digits, "c3")
    model = onnx.load(tail)
    largest = max(model.graph.initializer, key=lambda one: len(one.raw_data))
    changed = numpy_helper.to_array(largest) * np.float32(1.001)
    largest.CopyFrom(numpy_helper.from_array(changed, largest.name))
    onnx.save(model, tmp_path / "tail.onnx")
    found = one_of(said(1, head, tmp_path / "tail.onnx", "--whole", digits))
    error = found["outputs"][0]["error"]
    assert 1e-5 < error < 1e-2
    one_of(said(0, head, tmp_path / "tail.onnx", "--whole", digits, "--at-most", 2 * error))


def test_halves_that_give_something_else_every_time_do_not_hold(tmp_path: Path) -> None:
    head = dense(tmp_path / "head.onnx", {"x": 4}, {"h": 3})
    model = onnx.load(dense(tmp_path / "tail.onnx", {"h": 3}, {"y": 2}))
    model.graph.node.insert(0, helper.make_node("RandomNormalLike", ["h"], ["noise"]))
    model.graph.node[1].input[0] = "noise"
    onnx.save(model, tmp_path / "tail.onnx")
    assert one_of(said(1, head, tmp_path / "tail.onnx"))["repeatable"] is False


def test_a_tail_that_takes_nothing_of_the_head_is_none(tmp_path: Path) -> None:
    head = dense(tmp_path / "head.onnx", {"x": 4}, {"h": 3})
    tail = dense(tmp_path / "tail.onnx", {"x": 4}, {"y": 2})
    assert "takes none" in one_of(said(1, head, tail))["problem"]


# --- halves made elsewhere


def test_a_learned_bottleneck_with_names_of_its_own_is_matched_by_shape(tmp_path: Path) -> None:
    """As exporters write them: every model takes `input` and gives `output`."""
    head = dense(tmp_path / "head.onnx", {"input": 8}, {"output": 2})
    tail = dense(tmp_path / "tail.onnx", {"input": 2}, {"output": 5}, seed=1)
    whole = dense(tmp_path / "whole.onnx", {"input": 8}, {"output": 5}, seed=2)
    found = one_of(said(1, head, tail, "--whole", whole))
    assert found["matched_by"] == "order"
    assert [(one["output"], one["name"], one["size_bytes"]) for one in found["crossing"]] == [("output", "input", 8)]
    assert [one["name"] for one in found["outputs"]] == ["output"]
    assert found["outputs"][0]["error"] > 0.1
    one_of(said(0, head, tail, "--whole", whole, "--at-most", 10))


def test_an_early_exit_is_an_output_that_the_tail_does_not_take(tmp_path: Path) -> None:
    head = dense(tmp_path / "head.onnx", {"image": 8}, {"guess": 3, "features": 4})
    tail = dense(tmp_path / "tail.onnx", {"embedded": 4}, {"answer": 3}, seed=1)
    found = one_of(said(0, head, tail))
    assert found["early_outputs"] == ["guess"]
    assert found["matched_by"] == "order"
    text = run(head, tail).output
    assert "'guess' is an early answer" in text
    assert "features as embedded" in text
    assert "matched by order, datatype and shape" in text


def test_tensors_that_could_be_each_other_need_names(tmp_path: Path) -> None:
    head = dense(tmp_path / "head.onnx", {"x": 8}, {"a": 4, "b": 4, "c": 4})
    tail = dense(tmp_path / "tail.onnx", {"p": 4, "q": 4}, {"y": 3}, seed=1)
    assert "more than one way" in one_of(said(1, head, tail))["problem"]
    same = dense(tmp_path / "same.onnx", {"x": 8}, {"h": 8})
    late = dense(tmp_path / "late.onnx", {"x": 8}, {"y": 3}, seed=1)
    assert "name it as one of them" in one_of(said(1, same, late))["problem"]


def test_outputs_on_both_sides_and_an_input_of_the_tail(tmp_path: Path) -> None:
    model = early_exit(tmp_path)
    found = one_of(said(0, written(model, tmp_path / "split", "2"), "--whole", model, "--at-most", 0))
    assert {one["name"]: one["equal"] for one in found["outputs"]} == {"early": True, "late": True, "middle": True}
    assert (found["raw_inputs"], found["early_outputs"]) == (["other"], ["early"])


# --- inputs


def test_given_inputs_run_row_by_row(digits: Path, split_digits: Path, tmp_path: Path) -> None:
    data = tmp_path / "x.npz"
    np.savez(data, picture=np.random.default_rng(0).random((7, 1, 8, 8), np.float32))
    document = said(0, split_digits, "--whole", digits, "--inputs", data)
    assert {one["runs"] for one in document["halves"]} == {7}


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"other": np.zeros((1, 1, 8, 8), np.float32)}, "expected 'picture' FP32 [1, 1, 8, 8]"),
        ({"picture": np.zeros((1, 1, 8, 8))}, "'picture' is float64"),
        ({"picture": np.zeros((1, 1, 8, 9), np.float32)}, "expected 'picture' FP32 [1, 1, 8, 8]"),
        ({"picture": np.zeros((0, 1, 8, 8), np.float32)}, "it has no rows"),
    ],
)
def test_given_inputs_that_do_not_fit_are_refused(
    split_digits: Path, tmp_path: Path, arrays: Mapping[str, Any], why: str
) -> None:
    data = tmp_path / "x.npz"
    np.savez(data, **arrays)
    text = refused(split_digits, "--inputs", data)
    assert why in text
    assert "--inputs" in text


def test_several_rows_pass_an_open_batch(tmp_path: Path) -> None:
    model = tmp_path / "digits.onnx"
    onnx.save(build_residual_digits(dynamic_batch=True), model)
    data = tmp_path / "x.npz"
    np.savez(data, picture=np.random.default_rng(0).random((3, 1, 8, 8), np.float32))
    found = one_of(said(0, written(model, tmp_path / "split", "2"), "--whole", model, "--inputs", data))
    assert found["runs"] == 1
    assert found["crossing"][0]["shape"][0] == 3


def test_what_a_person_reads(digits: Path, split_digits: Path) -> None:
    result = run(split_digits, "--whole", digits)
    assert result.exit_code == 0
    lines: Sequence[str] = result.output.splitlines()
    assert sum("'scores'" in line and "holds" in line for line in lines) == 3
    assert sum("medians of 5 runs" in line for line in lines) == 3

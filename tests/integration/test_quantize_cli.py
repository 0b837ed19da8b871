"""`upwell model quantize` as a person runs it: through the command line, on trained models and real files."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image

from tests.page_reader import Reader, blocks
from tests.unit import models_for_tests as onnx_models
from tests.unit.edge.quantize import digit_models
from upwell.edge.runtimes.onnx.int8_saturation import saturates_here
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.runtimes.runtime_options import RuntimeOptions
from upwell.tools.cli import main
from upwell.tools.demo.digit_data import ASSETS, heldout

PAGE = Path(__file__).parents[2] / "docs" / "partitioning.md"

Quantize = Callable[..., tuple[int, str, str]]


@pytest.fixture
def quantize(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Quantize:
    """Run `upwell model quantize ARGUMENTS`; gives exit code, standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["upwell", "model", "quantize", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        return int(exit_.value.code or 0), *capfd.readouterr()

    return run


@pytest.fixture
def report(quantize: Quantize) -> Callable[..., dict[str, Any]]:
    """The same with `--json`, which must succeed and leave standard error alone."""

    def run(*arguments: object) -> dict[str, Any]:
        code, out, err = quantize(*arguments, "--json")
        assert (code, err) == (0, "")
        return dict(json.loads(out))

    return run


Report = Callable[..., dict[str, Any]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return digit_models.write_onnx(tmp_path / "digits.onnx")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return digit_models.save_data(tmp_path / "digits.npz")


def accuracy_of(path: Path, *, last: bool = False) -> float:
    """The share of unseen digits that a model file reads rightly, counted here."""
    runtime = load_runtime(path, RuntimeOptions(threads=1))
    pictures, labels = (array[digit_models.TRAINED :] for array in digit_models.digits())
    pictures = pictures.transpose(0, 2, 3, 1) if last else pictures
    right = sum(
        int(next(iter(runtime.run({"x": pictures[row : row + 1]}).values())).argmax()) == labels[row]
        for row in range(len(labels))
    )
    runtime.close()
    return float(right / len(labels))


# --- ONNX


def test_an_int8_model_is_within_a_point_of_the_float_one(report: Report, model: Path, data: Path) -> None:
    made = report(model, "--data", data)
    target = model.with_name("digits.int8.onnx")
    assert made["out"] == str(target)
    assert made["size_bytes"] == {"before": model.stat().st_size, "after": target.stat().st_size}
    assert made["accuracy"]["before"] > 0.93
    assert made["accuracy"]["after"] >= made["accuracy"]["before"] - 0.01
    assert accuracy_of(target) >= accuracy_of(model) - 0.01
    assert (made["warnings"], made["advice"]) == ([], [])
    weights = {one.name: one.data_type for one in onnx.load(str(target)).graph.initializer if one.dims}
    assert weights["first.weight_quantized"] == onnx.TensorProto.UINT8
    assert weights["first.weight_scale"] == onnx.TensorProto.FLOAT  # of rank 1: one for each channel


def test_rows_that_are_measured_on_are_not_calibrated_on(report: Report, model: Path, data: Path) -> None:
    used = report(model, "--data", data)["data"]
    assert used["rows"] == len(digit_models.digits()[0]) - digit_models.TRAINED
    assert used["calibrated_on"] + used["measured_on"] == used["rows"]
    assert used["held_out"] is True


def test_maps_are_compared_by_their_classes_and_embeddings_by_error_alone(report: Report, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32)}
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["maps"], pads=[1, 1, 1, 1]),
        onnx.helper.make_node("ReduceMean", ["maps"], ["vector"], axes=[2, 3], keepdims=0),
    ]
    outputs = [onnx_models.tensor("maps", ["rows", 4, 8, 16]), onnx_models.tensor("vector", ["rows", 4])]
    model = onnx_models.save(
        tmp_path / "model.onnx", nodes, [onnx_models.tensor("x", ["rows", 3, 8, 16])], outputs, weights
    )
    (tmp_path / "model.yaml").write_text(
        "version: 1\nsignature: {inputs: {x: {kind: tensor, dtype: FP32, shape: [-1, 3, 8, 16]}}, "
        "outputs: {maps: {kind: tensor}, vector: {kind: embedding}}}\n"
    )
    x = rng.standard_normal((12, 3, 8, 16)).astype(np.float32)
    chosen = onnxruntime.InferenceSession(model).run(["maps"], {"x": x})[0].argmax(1)
    np.savez(tmp_path / "data.npz", x=x, labels=chosen)
    made = report(model, "--data", tmp_path / "data.npz")
    now = onnxruntime.InferenceSession(made["out"]).run(["maps"], {"x": x})[0].argmax(1)
    same = float((now == chosen).mean())
    assert 0.9 < same < 1
    maps, vector = made["outputs"]
    assert maps["agreement"] == pytest.approx(same, abs=0.002)  # measured without the graph optimizations of a session
    assert made["accuracy"]["before"] == 1
    assert made["accuracy"]["after"] == maps["agreement"]
    assert vector["agreement"] is None


def test_one_probability_is_right_on_the_side_of_its_label(report: Report, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((16, 1)).astype(np.float32)}
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["h"]), onnx.helper.make_node("Sigmoid", ["h"], ["y"])]
    model = onnx_models.save(
        tmp_path / "model.onnx",
        nodes,
        [onnx_models.tensor("x", ["rows", 16])],
        [onnx_models.tensor("y", ["rows", 1])],
        weights,
    )
    (tmp_path / "model.yaml").write_text(
        "version: 1\nsignature: {inputs: {x: {kind: tensor, dtype: FP32, shape: [-1, 16]}}, "
        "outputs: {y: {kind: probabilities}}}\n"
    )
    x = rng.standard_normal((19, 16)).astype(np.float32)
    labels = (x @ weights["w"])[:, 0] > 0
    labels[:5] = ~labels[:5]
    np.savez(tmp_path / "data.npz", x=x, labels=labels.astype(np.int64))
    made = report(model, "--data", tmp_path / "data.npz")
    assert made["accuracy"]["before"] == pytest.approx(14 / 19)
    assert made["accuracy"]["after"] >= 13 / 19
    assert made["outputs"][0]["agreement"] >= 18 / 19


def test_few_rows_are_all_used_twice_and_it_says_so(report: Report, model: Path, tmp_path: Path) -> None:
    data = digit_models.save_data(tmp_path / "few.npz", slice(0, 12))
    made = report(model, "--data", data)
    assert (made["data"]["calibrated_on"], made["data"]["measured_on"], made["data"]["held_out"]) == (12, 12, False)
    assert any("only 12 rows" in warning for warning in made["warnings"])


def test_the_node_kept_float_is_float_in_the_file_and_the_worst_one_lowers_the_error(
    report: Report, model: Path, data: Path, tmp_path: Path
) -> None:
    before = report(model, "--data", data)
    worst = before["layers"][0]
    assert worst["added"] == max(layer["added"] for layer in before["layers"])
    after = report(model, "--data", data, "--out", tmp_path / "kept.onnx", "--keep-float", worst["node"])
    assert after["kept_float"] == [worst["node"]]
    precision = {layer["node"]: layer["precision"] for layer in after["layers"]}
    assert precision[worst["node"]] == "float"
    assert set(precision.values()) == {"int8", "float"}
    assert after["outputs"][0]["relative_error"] < 0.8 * before["outputs"][0]["relative_error"]
    assert fused_operators(tmp_path / "kept.onnx") < fused_operators(model.with_name("digits.int8.onnx"))


def fused_operators(path: Path) -> int:
    """How many operators ONNX Runtime runs on integers in this model."""
    target = path.with_suffix(".optimized.onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return sum(node.op_type in ("QLinearConv", "QGemm") for node in onnx.load(str(target)).graph.node)


@pytest.mark.slow
def test_what_is_lost_brings_a_warning_and_advice_that_was_tried(report: Report, data: Path, tmp_path: Path) -> None:
    """One channel of a thousand times the others' range leaves those a step or two."""
    model = digit_models.write_onnx(tmp_path / "outlier.onnx", digit_models.with_outlier(1000.0))
    made = report(model, "--data", data)
    assert made["accuracy"]["after"] < made["accuracy"]["before"] - 0.05
    assert any(warning.startswith("accuracy falls by ") for warning in made["warnings"])
    best = made["advice"][0]
    assert best["accuracy"] > made["accuracy"]["before"] - 0.02
    kept = [part for node in best["nodes"] for part in ("--keep-float", node)]
    again = report(model, "--data", data, "--force", *kept)
    assert again["accuracy"]["after"] == pytest.approx(best["accuracy"], abs=0.02)
    assert not any(warning.startswith("accuracy") for warning in again["warnings"])


def test_signed_weights_are_named_as_what_overflows(report: Report, model: Path, data: Path) -> None:
    made = report(model, "--data", data, "--weights", "s8")
    (warning,) = made["warnings"]
    assert "overflow on x86 CPUs without VNNI" in warning
    assert (", like this one" in warning) is saturates_here()
    weights = {one.name: one.data_type for one in onnx.load(made["out"]).graph.initializer}
    assert weights["first.weight_quantized"] == onnx.TensorProto.INT8


QEMU = shutil.which("qemu-x86_64")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(QEMU is None, reason="qemu-x86_64, which imitates a CPU without VNNI, is not installed")
def test_on_a_cpu_without_vnni_the_overflow_is_measured(model: Path, tmp_path: Path) -> None:
    data = digit_models.save_data(tmp_path / "few.npz", slice(0, 24))
    script = "import sys; from upwell.tools.cli import main; sys.argv[0] = 'upwell'; main()"
    command = [str(QEMU), "-cpu", "Haswell", sys.executable, "-c", script, "model", "quantize", str(model)]
    done = subprocess.run(
        [*command, "--data", str(data), "--weights", "s8", "--json"], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    (warning,) = [one for one in made["warnings"] if "VNNI, like this one" in one]
    plain, exact = map(float, re.findall(r"(\d\.\d+) (?:in plain|with exact)", warning))
    assert plain > 3 * exact


def test_for_an_npu_weights_are_signed_and_arithmetic_is_exact(report: Report, model: Path, data: Path) -> None:
    made = report(model, "--data", data, "--target", "npu")
    assert "weights s8" in made["scheme"]
    assert (made["warnings"], made["time_here_ms"]) == ([], None)
    assert made["accuracy"]["after"] >= made["accuracy"]["before"] - 0.01


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", ["entropy", "percentile"])
def test_other_ways_to_choose_ranges(report: Report, model: Path, data: Path, method: str) -> None:
    made = report(model, "--data", data, "--method", method)
    assert made["method"] == method
    assert made["accuracy"]["after"] >= made["accuracy"]["before"] - 0.02


def test_pictures_go_through_the_models_own_pre_processing(report: Report, tmp_path: Path) -> None:
    folder = tmp_path / "large"
    shutil.copytree(ASSETS / "cloud" / "digits-large" / "1", folder)
    held_out = heldout()
    np.savez(tmp_path / "pictures.npz", image=held_out.images[:120], labels=held_out.labels[:120])
    made = report(folder / "model.onnx", "--data", tmp_path / "pictures.npz")
    assert made["data"]["described_by"] == str(folder / "model.yaml")
    assert made["accuracy"]["before"] > 0.98
    assert made["accuracy"]["after"] > 0.98
    assert made["size_bytes"]["after"] < 0.3 * made["size_bytes"]["before"]


def test_a_folder_of_pictures_does_what_their_pixels_do(report: Report, quantize: Quantize, tmp_path: Path) -> None:
    folder, pictures = tmp_path / "large", tmp_path / "pictures ü"
    shutil.copytree(ASSETS / "cloud" / "digits-large" / "1", folder)
    pictures.mkdir()
    digits = heldout().images[:60]
    for index, pixels in enumerate(digits):
        Image.fromarray(pixels.squeeze()).save(pictures / f"{index:02}.png")
    np.savez(tmp_path / "pixels.npz", image=digits)
    for data, out in ((pictures, "a.onnx"), (tmp_path / "pixels.npz", "b.onnx")):
        made = report(folder / "model.onnx", "--data", data, "--out", tmp_path / out)
        assert (made["data"]["rows"], made["data"]["path"], made["accuracy"]) == (60, str(data), None)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    (pictures / "41.png").write_bytes(b"no picture")
    code, _, err = quantize(folder / "model.onnx", "--data", pictures)
    assert code == 2
    assert f"{pictures / '41.png'}: --data: " in err.replace("\n", "")


def test_several_inputs_without_labels(report: Report, tmp_path: Path) -> None:
    """`(a · w) * b`, both inputs [rows, 3]: an old opset, a node without a name, weights per channel."""
    weights = np.random.default_rng(0).standard_normal((3, 3), np.float32)
    nodes = [
        onnx.helper.make_node("MatMul", ["a", "w"], ["aw"], name="product"),
        onnx.helper.make_node("Mul", ["aw", "b"], ["y"]),
    ]
    inputs = [onnx_models.tensor(name, ["rows", 3]) for name in "ab"]
    path = onnx_models.save(
        tmp_path / "two.onnx", nodes, inputs, [onnx_models.tensor("y", ["rows", 3])], {"w": weights}
    )
    old = onnx.load(str(path))
    old.opset_import[0].version = 11
    path.write_bytes(old.SerializeToString())
    random = np.random.default_rng(1)
    np.savez(tmp_path / "two.npz", a=random.uniform(-1, 1, (400, 3)), b=random.uniform(-1, 1, (400, 3)))  # float64
    made = report(path, "--data", tmp_path / "two.npz")
    assert made["accuracy"] is None
    assert "opset 13 (raised from 11)" in made["scheme"]
    (output,) = made["outputs"]
    assert output["relative_error"] < 0.05
    assert {layer["node"] for layer in made["layers"]} == {"product", "Mul_1"}
    assert {layer["precision"] for layer in made["layers"]} == {"int8"}


# --- TFLite


@pytest.mark.parametrize("signature", [pytest.param(True, marks=pytest.mark.exhaustive), False])
def test_tflite_keeps_its_accuracy(report: Report, tmp_path: Path, signature: bool) -> None:
    model = digit_models.write_tflite(tmp_path / "digits.tflite", signature=signature)
    data = digit_models.save_data(tmp_path / "digits.npz", last=True)
    made = report(model, "--data", data)
    target = model.with_name("digits.int8.tflite")
    assert made["accuracy"]["after"] >= made["accuracy"]["before"] - 0.01 > 0.92
    assert accuracy_of(target, last=True) >= accuracy_of(model, last=True) - 0.01
    assert {layer["precision"] for layer in made["layers"]} == {"int8"}
    runtime = load_runtime(target)
    assert [(spec.name, spec.datatype) for spec in (*runtime.inputs, *runtime.outputs)] == [
        ("x", "FP32"), ("logits", "FP32"),
    ]  # fmt: skip


def test_tflite_with_int8_inputs_and_outputs(report: Report, tmp_path: Path) -> None:
    model = digit_models.write_tflite(tmp_path / "digits.tflite")
    data = digit_models.save_data(tmp_path / "digits.npz", last=True)
    made = report(model, "--data", data, "--interface", "int8")
    assert made["accuracy"]["after"] >= made["accuracy"]["before"] - 0.01
    runtime = load_runtime(Path(made["out"]))
    assert [spec.datatype for spec in (*runtime.inputs, *runtime.outputs)] == ["INT8", "INT8"]


@pytest.mark.slow
def test_a_tflite_node_kept_float_is_float(report: Report, tmp_path: Path) -> None:
    model = digit_models.write_tflite(tmp_path / "digits.tflite")
    data = digit_models.save_data(tmp_path / "digits.npz", last=True)
    before = report(model, "--data", data)
    worst = before["layers"][0]["node"]
    after = report(model, "--data", data, "--force", "--keep-float", worst)
    assert {layer["node"] for layer in after["layers"] if layer["precision"] == "float"} == {worst}
    assert after["outputs"][0]["relative_error"] < before["outputs"][0]["relative_error"]


# --- What people see, and mistakes


def test_a_person_sees_what_matters(quantize: Quantize, model: Path, data: Path) -> None:
    code, out, err = quantize(model, "--data", data, "--keep-float", "head")
    assert (code, err) == (0, "")
    for words in ("accuracy", "same answer in", "worst first", "second", "kept float: head", "written to"):
        assert words in out
    mode = model.with_name("digits.int8.onnx").stat().st_mode
    assert stat.S_IMODE(mode) == 0o666 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_names_like_markup_are_shown_as_they_are(quantize: Quantize, tmp_path: Path) -> None:
    weights = np.eye(2, dtype=np.float32)
    node = onnx.helper.make_node("MatMul", ["[bold]x", "w"], ["[/red]y"], name="[blink]n\x1b[31m")
    inputs, outputs = [onnx_models.tensor("[bold]x", ["n", 2])], [onnx_models.tensor("[/red]y", ["n", 2])]
    model = onnx_models.save(tmp_path / "m.onnx", [node], inputs, outputs, {"w": weights})
    np.savez(tmp_path / "d.npz", np.random.default_rng(0).standard_normal((30, 2)).astype(np.float32))
    code, out, _ = quantize(model, "--data", tmp_path / "d.npz")
    assert code == 0
    assert "[blink]n\ufffd[31m" in out
    assert "[/red]y" in out
    assert "\x1b" not in out


def test_a_long_name_is_whole_in_a_narrow_terminal(
    quantize: Quantize, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "/model/encoder/layers.0/attention/self/query/MatMul" * 2
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name=name)
    inputs, outputs = [onnx_models.tensor("x", ["n", 2])], [onnx_models.tensor("y", ["n", 2])]
    model = onnx_models.save(tmp_path / "m.onnx", [node], inputs, outputs, {"w": np.eye(2, dtype=np.float32)})
    np.savez(tmp_path / "d.npz", np.random.default_rng(0).standard_normal((30, 2)).astype(np.float32))
    monkeypatch.setattr("upwell.tools.terminal.PIPE_COLUMNS", 60)
    _, out, _ = quantize(model, "--data", tmp_path / "d.npz")
    assert name in "".join(line.split(" ")[0] for line in out.splitlines())
    assert re.search(r" \d\.\d{4} +\d\.\d{4} +\d+\.\d$", out, re.MULTILINE)  # numbers in one line


def wrong_data(folder: Path) -> None:
    pictures, labels = (array[:30] for array in digit_models.digits())
    np.savez(folder / "wrong_name.npz", y=pictures)
    np.savez(folder / "wrong_shape.npz", x=pictures[..., 0])
    np.savez(folder / "integers.npz", x=(pictures * 255).astype(np.uint8))
    np.savez(folder / "nan.npz", x=np.where(pictures > 0.9, np.nan, pictures))
    np.savez(folder / "unequal.npz", x=pictures, labels=labels[:29])
    np.savez(folder / "no_class.npz", x=pictures, labels=labels + 10)
    np.savez(folder / "negative.npz", x=pictures, labels=labels - 1)
    np.savez(folder / "float_labels.npz", x=pictures, labels=labels.astype(np.float32))
    np.savez(folder / "labels_twice.npz", x=pictures, labels=np.stack([labels, labels], 1))
    np.savez(folder / "nothing.npz", x=pictures[:0])
    np.savez(folder / "objects.npz", x=np.array([{}], object))
    (folder / "text.npz").write_text("no archive")
    (folder / "text.csv").write_text("a,b")
    (folder / "cut.npz").write_bytes((folder / "unequal.npz").read_bytes()[:-200])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["digits.onnx"], "Missing option '--data'"),
        (["digits.onnx", "--data", "missing.npz"], "missing.npz: --data: cannot be read: No such file"),
        (["digits.onnx", "--data", "text.npz"], "cannot be read as NumPy arrays"),
        (["digits.onnx", "--data", "cut.npz"], "cannot be read as NumPy arrays"),
        (["digits.onnx", "--data", "text.csv"], "expected a folder of pictures, or an .npz or .npy file"),
        (["digits.onnx", "--data", "pictures"], "`upwell model init` describes one as a picture"),
        (["digits.onnx", "--data", "."], "a folder may hold pictures alone; put all arrays into one .npz"),
        (["digits.onnx", "--data", "empty"], "it contains no items; expected files that end in"),
        (["digits.onnx", "--data", "objects.npz"], "Python objects, which are never read"),
        (["digits.onnx", "--data", "wrong_name.npz"], "it has the arrays 'y'; expected 'x'"),
        (["digits.onnx", "--data", "wrong_shape.npz"], "takes N rows of FP32 [1, 8, 8]"),
        (["digits.onnx", "--data", "integers.npz"], "is uint8, but the input takes float32; scale it"),
        (["digits.onnx", "--data", "nan.npz"], "has numbers that are not finite: "),
        (["digits.onnx", "--data", "nothing.npz"], "has no rows"),
        (["digits.onnx", "--data", "unequal.npz"], "'x' 30, 'labels' 29"),
        (["digits.onnx", "--data", "no_class.npz"], "is not a class: 'logits' has 10 classes"),
        (["digits.onnx", "--data", "negative.npz"], "classes count from 0"),
        (["digits.onnx", "--data", "float_labels.npz"], "expected the number of a class"),
        (["digits.onnx", "--data", "labels_twice.npz"], "need an output with a vector of scores for each"),
        (
            ["digits.onnx", "--data", "digits.npz", "--keep-float", "secnd"],
            "no node 'secnd'; did you mean 'second'",
        ),
        (["digits.onnx", "--data", "digits.npz", "--interface", "int8"], "of an ONNX model stay float"),
        (["digits.onnx", "--data", "digits.npz", "--out", "."], "--out must name a file"),
        (["digits.onnx", "--data", "digits.npz", "--out", "digits.onnx"], "this is the float model itself"),
        (["digits.onnx", "--data", "digits.npz", "--out", "taken.onnx"], "replace it with --force"),
        (["digits.onnx", "--data", "digits.npz", "--out", "nowhere/a.onnx"], "there is no folder nowhere"),
        (["digits.onnx", "--data", "digits.npz", "--out", "a.tflite"], "is also a .onnx file"),
        (["digits.onnx", "--data", "digits.npz", "--weights", "s4"], "Invalid value for '--weights'"),
        (["digits.tflite", "--data", "last.npz", "--weights", "u8"], "TFLite's kernels take only s8 weights"),
        (["digits.tflite", "--data", "last.npz", "--method", "entropy"], "TFLite supports minmax"),
        (
            ["digits.tflite", "--data", "last.npz", "--keep-float", "1 CONV_2D"],
            "did you mean '2 CONV_2D', '0 CONV_2D'",
        ),
        (["digits.tflite", "--data", "digits.npz"], "takes N rows of FP32 [8, 8, 1]"),
        (["int8.onnx", "--data", "digits.npz"], "it is already quantized"),
        (["int8.tflite", "--data", "digits.npz"], "it is already quantized"),
        (["missing.onnx", "--data", "digits.npz"], "no such file; expected a model"),
        (["broken.onnx", "--data", "digits.npz"], "not an ONNX file"),
        ([".", "--data", "digits.npz"], ".: this is a folder; expected a model file"),
        (["digits.npz", "--data", "digits.npz"], "expected a .onnx or .tflite file"),
        (["elsewhere.onnx", "--data", "digits.npz"], "external weights '../secret' are refused"),
        (["large.onnx", "--data", "digits.npz"], "MiB cannot be quantized"),
    ],
)
def test_mistakes_are_one_clear_error(
    quantize: Quantize, broken: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(broken)
    before = sorted(os.listdir())
    code, out, err = quantize(*arguments)
    assert (code, out) == (2, "")
    assert said in " ".join(err.replace("│", " ").split())
    assert "Traceback" not in err
    assert sorted(os.listdir()) == before
    assert Path("taken.onnx").read_text() == "mine"


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models and data, good and bad."""
    folder = tmp_path_factory.mktemp("broken")
    digit_models.write_onnx(folder / "digits.onnx")
    digit_models.write_tflite(folder / "digits.tflite")
    digit_models.save_data(folder / "digits.npz")
    digit_models.save_data(folder / "last.npz", last=True)
    wrong_data(folder)
    pages = ASSETS / "edge" / "digits"
    shutil.copy(pages / "model.onnx", folder / "int8.onnx")
    shutil.copy(pages / "model.tflite", folder / "int8.tflite")
    (folder / "broken.onnx").write_text("this is no model")
    (folder / "empty").mkdir()
    (folder / "pictures").mkdir()
    Image.new("L", (8, 8)).save(folder / "pictures" / "a.png")
    (folder / "taken.onnx").write_text("mine")
    onnx_models.linear_elsewhere(folder, "../secret").rename(folder / "elsewhere.onnx")
    onnx_models.linear_elsewhere(folder, "weights.bin").rename(folder / "large.onnx")
    with (folder / "weights.bin").open("wb") as file:
        file.truncate(2 << 30)  # a hole, which takes no room
    return folder


# --- docs/partitioning.md


@pytest.mark.slow
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    for block in blocks(PAGE.read_text(encoding="utf-8")):
        reader.do(block)

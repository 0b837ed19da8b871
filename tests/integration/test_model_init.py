"""`upwell model init` as a person runs it: through the command line, on real files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from PIL import Image

from tests.unit import models_for_tests as onnx_models
from tests.unit import tflite_for_tests as tflite_models
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.shared.config.yaml import load_yaml
from upwell.shared.signature.model_yaml import ModelDescription
from upwell.shared.signature.processor import Processor
from upwell.tools.cli import main
from upwell.tools.model_init.cli import FORMATS

Init = Callable[..., tuple[int, str, str]]


@pytest.fixture
def init(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Init:
    """Run `upwell model init ARGUMENTS`; gives exit code, standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["upwell", "model", "init", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        return int(exit_.value.code or 0), *capfd.readouterr()

    return run


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """A classifier of pictures: `images` FP32 [N, 3, 32, 32] -> `scores` FP32 [N, 3]."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["images"], ["means"]),
        helper.make_node("Flatten", ["means"], ["scores"]),
    ]
    inputs, outputs = [onnx_models.tensor("images", ["N", 3, 32, 32])], [onnx_models.tensor("scores", ["N", 3])]
    return onnx_models.save(tmp_path / "classifier.onnx", nodes, inputs, outputs)


def test_what_is_written_runs_pictures(init: Init, classifier: Path) -> None:
    code, out, err = init(classifier)
    target = classifier.with_name("model.yaml")
    assert (code, err) == (0, "")
    assert "images" in out
    assert "[-1, 3, 32, 32]" in out
    assert f"wrote {target}" in out
    runtime = load_runtime(classifier)
    processor = Processor(load_yaml(target, ModelDescription), runtime.inputs, runtime.outputs, runtime.name)
    picture = BytesIO()
    Image.new("RGB", (64, 48), (255, 0, 0)).save(picture, "PNG")
    prepared = processor.pre({"image": np.array([picture.getvalue()], object)})
    scores = processor.post(processor.run_rows(runtime.run, prepared), prepared)["scores"]
    np.testing.assert_allclose(scores, [[1, 0, 0]], atol=1e-6)


def test_the_lines_to_check_are_those_of_the_file(init: Init, classifier: Path) -> None:
    _, out, _ = init(classifier, "--json")
    report = json.loads(out)
    lines = classifier.with_name("model.yaml").read_text().splitlines()
    assert report["check"]
    for check in report["check"]:
        assert lines[check["line"] - 2].strip() == f"# {check['comment']}"
        assert not lines[check["line"] - 1].strip().startswith("#")


def test_json_is_all_there_is_on_standard_output(init: Init, tmp_path: Path) -> None:
    tensors = [
        tflite_models.T("x", (1, 2), "INT8", None, (0.5, -3)),
        tflite_models.T("y", (1, 2), "INT8", None, (1.0, 0)),
    ]
    path = tflite_models.save(tmp_path / "quantized.tflite", tensors, [tflite_models.add(0, 0, 1)], [0], [1])
    code, out, _ = init(path, "--json", "--out", tmp_path / "other.yaml")
    report = json.loads(out)
    assert code == 0
    assert report["runtime"].startswith("ai-edge-litert ")
    assert report["inputs"] == [{"name": "x", "datatype": "INT8", "shape": [1, 2], "quantization": [0.5, -3]}]
    assert report["outputs"] == [{"name": "y", "datatype": "INT8", "shape": [1, 2], "quantization": [1.0, 0]}]
    assert report["written"] == str(tmp_path / "other.yaml")
    assert (tmp_path / "other.yaml").is_file()
    assert not (tmp_path / "model.yaml").exists()


def test_quantized_tensors_show_their_numbers(init: Init, tmp_path: Path) -> None:
    tensors = [tflite_models.T(name, (1, 2), "INT8", None, (0.5, -3)) for name in "xy"]
    path = tflite_models.save(tmp_path / "quantized.tflite", tensors, [tflite_models.add(0, 0, 1)], [0], [1])
    assert "0.5, -3" in init(path)[1]


def test_names_like_markup_are_shown_as_they_are(init: Init, tmp_path: Path) -> None:
    node = helper.make_node("Identity", ["[bold]x"], ["[/red]y"])
    inputs, outputs = [onnx_models.tensor("[bold]x", [2])], [onnx_models.tensor("[/red]y", [2])]
    code, out, _ = init(onnx_models.save(tmp_path / "m.onnx", [node], inputs, outputs))
    assert code == 0
    assert "[bold]x" in out
    assert "[/red]y" in out


def test_a_file_is_replaced_only_by_force(init: Init, classifier: Path) -> None:
    target = classifier.with_name("model.yaml")
    target.write_text("mine")
    code, out, err = init(classifier)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {target}: ")
    assert "--force" in err
    assert target.read_text() == "mine"
    assert init(classifier, "--force")[0] == 0
    assert target.read_text() != "mine"
    assert sorted(path.name for path in classifier.parent.iterdir()) == ["classifier.onnx", "model.yaml"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.onnx"], "no such file; expected a model"),
        (["broken.onnx"], "not an ONNX file"),
        (["notes.txt"], "write `runtime: onnx` or `tflite`"),
        (["classifier.onnx", "--out", "."], "--out must name a file"),
        (["classifier.onnx", "--out", "nowhere/model.yaml"], "cannot be written: No such file or directory"),
        (["classifier.onnx", "--out", "broken.onnx/model.yaml"], "cannot be written: Not a directory"),
        (["classifier.onnx", "--nonsense"], "No such option"),
        ([], "Missing argument"),
    ],
)
def test_mistakes_are_one_clear_error(
    init: Init, classifier: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(classifier.parent)
    for name in ("broken.onnx", "notes.txt"):
        Path(name).write_text("this is no model")
    before = sorted(os.listdir())
    code, out, err = init(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("suffix", [*sorted(FORMATS), ".PT"])
def test_other_formats_are_refused_with_what_converts_them(init: Init, tmp_path: Path, suffix: str) -> None:
    model = tmp_path / f"model{suffix}"
    model.write_bytes(b"x")
    code, out, said = init(model)
    assert (code, out) == (2, "")
    assert said.startswith("error: ")
    assert said.count("\n") <= 2
    assert any(one in said for one in ("ONNX", "model.onnx", "mv model.lite model.tflite"))
    assert init(tmp_path) == (2, "", said)


def test_a_program_of_torch_export_is_not_taken_for_weights(init: Init, tmp_path: Path) -> None:
    (tmp_path / "model.pt2").write_bytes(b"x")
    code, _, said = init(tmp_path / "model.pt2")
    assert code == 2
    assert 'torch.export.load("model.pt2")' in said
    assert "without a program" not in said


def test_a_model_without_inputs_is_refused_and_nothing_is_written(init: Init, tmp_path: Path) -> None:
    node = helper.make_node("Constant", [], ["y"], value_floats=[1.0, 2.0])
    onnx_models.save(tmp_path / "model.onnx", [node], [], [onnx_models.tensor("y", [2])])
    code, _, said = init(tmp_path)
    assert code == 2
    assert "the model takes no inputs" in said
    assert not (tmp_path / "model.yaml").exists()


def test_a_saved_model_and_an_empty_folder_are_refused(init: Init, tmp_path: Path) -> None:
    code, _, said = init(tmp_path)
    assert code == 2
    assert "expected an ONNX or TFLite file" in said
    (tmp_path / "saved_model.pb").write_bytes(b"")
    code, _, said = init(tmp_path)
    assert code == 2
    assert "tf2onnx.convert --saved-model" in said

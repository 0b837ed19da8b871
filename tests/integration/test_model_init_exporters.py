"""`upwell model init` on what exporters write: task, normalization, layout and labels are right without an edit."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from PIL import Image

from tests.in_process import CommandResult, InProcess
from tests.models.make_described import FOLDER, LABELS, TEXTS
from tests.unit.models_for_tests import save, tensor
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.shared.config.yaml import load_yaml
from upwell.shared.signature.model_yaml import ModelDescription, load_description
from upwell.shared.signature.processor import Processor
from upwell.shared.signature.signature import LogicalOutput
from upwell.shared.tensors import Array, TensorSpec
from upwell.tools.model_init.ultralytics_metadata import ultralytics as read_ultralytics

RED = (200, 30, 40)
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
NAMES = "{0: 'red thing', 1: 'green thing', 2: 'blue thing'}"


def averaging(path: Path, size: int = 8, metadata: Mapping[str, str] | None = None, name: str = "logits") -> Path:
    """A model whose answer is what each channel of its input is on average."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nodes = [
        helper.make_node("GlobalAveragePool", ["pixel_values"], ["means"]),
        helper.make_node("Flatten", ["means"], [name]),
    ]
    save(path, nodes, [tensor("pixel_values", ["N", 3, size, size])], [tensor(name, ["N", 3])])
    return described(path, metadata or {})


def described(path: Path, metadata: Mapping[str, str]) -> Path:
    model = onnx.load(path)
    helper.set_model_props(model, dict(metadata))
    onnx.save(model, path)
    return path


def detecting(path: Path, metadata: Mapping[str, str], boxes: Array) -> Path:
    """A model that sees the same boxes in every picture, in pixels of its input."""
    constant = helper.make_node("Constant", [], ["found"], value=numpy_helper.from_array(boxes.astype(np.float32)))
    zero = helper.make_node("ReduceMean", ["images"], ["zero"], axes=[1, 2, 3], keepdims=0)
    nodes = [constant, zero, helper.make_node("Mul", ["zero", "nothing"], ["none"]),
             helper.make_node("Add", ["found", "none"], ["output0"])]  # fmt: skip
    constants = {"nothing": np.zeros(1, np.float32)}
    save(path, nodes, [tensor("images", [1, 3, 64, 64])], [tensor("output0", list(boxes.shape))], constants)
    return described(path, metadata)


def ultralytics(task: str, size: int, names: str = NAMES, **more: str) -> dict[str, str]:
    """As its exporter writes it."""
    return {
        "description": f"Ultralytics {task} model", "author": "Ultralytics", "version": "8.3.0", "license": "AGPL-3.0",
        "stride": "32", "task": task, "batch": "1", "imgsz": f"[{size}, {size}]", "names": names, **more,
    }  # fmt: skip


def picture(path: Path, size: tuple[int, int] = (30, 20)) -> Path:
    Image.new("RGB", size, RED).save(path)
    return path


def arrays(name: str) -> dict[str, Array]:
    """What is in an archive of the folder."""
    with np.load(FOLDER / name) as archive:
        return dict(archive)


def init(in_process: InProcess, model: Path, *more: object) -> dict[str, Any]:
    done = in_process("model", "init", model, "--json", *more)
    assert (done.code, done.err) == (0, "")
    report: dict[str, Any] = json.loads(done.out)
    return report


def asked(model: Path, inputs: Mapping[str, Array]) -> tuple[tuple[LogicalOutput, ...], Mapping[str, Array]]:
    """The outputs and what the model answers, by the model.yaml beside it."""
    runtime = load_runtime(model)
    processor = Processor(
        load_description(model.with_name("model.yaml")), runtime.inputs, runtime.outputs, runtime.name
    )
    prepared = processor.pre(inputs)
    answers = processor.post(processor.run_rows(runtime.run, prepared), prepared)
    runtime.close()
    return processor.signature.outputs, answers


def answered(model: Path, size: tuple[int, int] = (30, 20)) -> tuple[str, Array, tuple[str, ...]]:
    """Kind, values and labels of the first output for a red picture, by the model.yaml beside the model."""
    description = load_yaml(model.with_name("model.yaml"), ModelDescription)
    runtime = load_runtime(model)
    processor = Processor(description, runtime.inputs, runtime.outputs, runtime.name)
    data = BytesIO()
    Image.new("RGB", size, RED).save(data, "PNG")
    prepared = processor.pre({"image": np.array([data.getvalue()], object)})
    outputs = processor.post(processor.run_rows(runtime.run, prepared), prepared)
    runtime.close()
    first = processor.signature.outputs[0]
    return first.kind, outputs[first.name], first.labels


def test_a_classifier_of_ultralytics(tmp_path: Path, in_process: InProcess) -> None:
    model = averaging(tmp_path / "best.onnx", metadata=ultralytics("classify", 8), name="output0")
    report = init(in_process, model)
    assert report["check"] == report["not_known"] == []
    kind, values, labels = answered(model)
    assert (kind, labels) == ("probabilities", LABELS)
    np.testing.assert_allclose(values, [np.array(RED) / 255], atol=1e-5)
    assert "fit: cover" in (tmp_path / "model.yaml").read_text()


def test_a_classifier_of_ultralytics_that_is_no_square_takes_a_stretched_picture(
    tmp_path: Path, in_process: InProcess
) -> None:
    model = averaging(tmp_path / "best.onnx", metadata=ultralytics("classify", 8, imgsz="[8, 12]"), name="output0")
    init(in_process, model)
    assert "fit: stretch" in (tmp_path / "model.yaml").read_text()


def test_a_detector_of_ultralytics(tmp_path: Path, in_process: InProcess) -> None:
    boxes = np.zeros((1, 7, 84))
    boxes[0, :4, 5] = [32, 32, 16, 8]  # in the middle of the letterboxed picture
    boxes[0, 4:, 5] = [0.1, 0.8, 0.05]
    model = detecting(tmp_path / "best.onnx", ultralytics("detect", 64), boxes)
    shown = picture(tmp_path / "photo.png", (128, 64))
    (tmp_path / "photo-boxes.png").write_bytes(b"the user's own")
    report = init(in_process, model, "--try", shown)
    assert report["check"] == report["not_known"] == []
    assert (tmp_path / "photo-boxes.png").read_bytes() == b"the user's own"
    assert report["tried"]["drawn"] == str(tmp_path / "photo-boxes-2.png")
    assert init(in_process, model, "--force", "--try", shown)["tried"]["drawn"] == str(tmp_path / "photo-boxes.png")
    kind, values, labels = answered(model, (128, 64))
    assert (kind, labels) == ("detections", LABELS)
    np.testing.assert_allclose(values[0, 0], [24 / 64, 24 / 64, 40 / 64, 40 / 64, 0.8, 1], atol=1e-5)
    assert report["tried"]["found"][0] == "1 box"
    assert "green thing" in report["tried"]["found"][1]
    with Image.open(report["tried"]["drawn"]) as drawn:
        assert drawn.size == (128, 64)
        assert drawn.convert("RGB").getpixel((48, 24)) != RED
    assert "fill: 114" in (tmp_path / "model.yaml").read_text()


WIDE = FOLDER / "wide.png"


def ultralytics_answer(folder: Path, in_process: InProcess, task: str) -> tuple[dict[str, Any], Mapping[str, Array]]:
    """What init reports of the export of a task, and what the model then finds in `wide.png`."""
    model = Path(shutil.copy(FOLDER / f"ultralytics_{task}.onnx", folder / "best.onnx"))
    shown = shutil.copy(WIDE, folder / "wide.png")
    report = init(in_process, model, "--try", shown)
    assert report["check"] == report["not_known"] == []
    (first, *_), answers = asked(model, {"image": np.array([WIDE.read_bytes()], object)})
    assert (first.kind, first.labels) == ("detections", LABELS)
    with Image.open(report["tried"]["drawn"]) as drawn:
        assert drawn.size == (64, 48)
        assert drawn.convert("RGB").tobytes() != Image.open(WIDE).convert("RGB").tobytes()
    return report, answers


@pytest.mark.parametrize("task", ["detect", "segment", "pose", "obb"])
def test_an_export_of_ultralytics_finds_what_ultralytics_finds(
    tmp_path: Path, in_process: InProcess, task: str
) -> None:
    expected = arrays("ultralytics.npz")
    _, answers = ultralytics_answer(tmp_path, in_process, task)
    rows = answers["detections"][0]
    found = rows[rows[:, 5] >= 0]
    if task == "obb":
        # Of turned boxes it drops one for the sake of another that was dropped itself; what it keeps is kept here, too.
        apart = np.abs(found[:, 4] - expected[task][:, 4:5])
        found = found[apart.argmin(axis=1)]
        ours, theirs = found[:, 6:].reshape(-1, 4, 2), expected["corners"]
        between = np.abs(ours[:, :, None] - theirs[:, None]).max(axis=3).min(axis=2)  # whichever corner is the first
        assert between.max() < 1e-4
    assert len(found) == len(expected[task])
    np.testing.assert_allclose(found[:, 4:6], expected[task][:, 4:6], atol=1e-5)
    if task == "obb":
        return
    np.testing.assert_allclose(found[:, :4], expected[task][:, :4], atol=1e-4)
    if task == "pose":
        np.testing.assert_allclose(found[:, 6:].reshape(-1, 3, 3), expected["keypoints"], atol=1e-4)
    if task == "segment":
        masks = answers["masks"][0]
        rows, columns = ((np.arange(16) + 0.5) * 3 + 8).astype(int), ((np.arange(16) + 0.5) * 4).astype(int)
        theirs = expected["masks"][:, rows][:, :, columns]  # of the letterboxed 64 x 64
        best = np.where(theirs.any(axis=0), theirs.argmax(axis=0) + 1, 0)
        assert np.mean(masks == best) > 0.9  # they sample twice: up to the picture, and down here


def test_boxes_that_were_suppressed_in_the_model_are_read(tmp_path: Path, in_process: InProcess) -> None:
    boxes = np.zeros((1, 300, 6))
    boxes[0, 0] = [16, 24, 48, 40, 0.8, 1]
    boxes[0, 1] = [16, 24, 48, 40, 0.7, 1]  # which the model has kept, and so it stays
    model = detecting(tmp_path / "best.onnx", ultralytics("detect", 64), boxes)
    report = init(in_process, model)
    assert report["check"] == report["not_known"] == []
    _, values, _ = answered(model, (128, 64))
    np.testing.assert_allclose(values[0, 0], [0.25, 0.25, 0.75, 0.75, 0.8, 1], atol=1e-5)
    np.testing.assert_allclose(values[0, 1, 4:], [0.7, 1], atol=1e-5)
    assert values[0, 2, 5] == -1


@pytest.mark.parametrize(
    ("wide", "more"),
    [(6, {"head": "RTDETRDecoder"}), (7, {"description": "Ultralytics rtdetr-l model trained on x.yaml"})],
)
def test_a_transformer_of_ultralytics_has_fractions_of_a_stretched_picture(
    tmp_path: Path, in_process: InProcess, wide: int, more: dict[str, str]
) -> None:
    boxes = np.zeros((1, 300, wide))
    boxes[0, 0] = [0.5, 0.25, 0.5, 0.5, 0.8, 1] if wide == 6 else [0.5, 0.25, 0.5, 0.5, 0.1, 0.8, 0.2]
    boxes[0, 1] = boxes[0, 0] * [*[1] * 4, *[0.9] * (wide - 4)] if wide == 7 else [0.5, 0.25, 0.5, 0.5, 0.72, 1]
    model = detecting(tmp_path / "best.onnx", ultralytics("detect", 64, **more), boxes)
    report = init(in_process, model)
    assert report["check"] == report["not_known"] == []
    _, values, _ = answered(model, (128, 64))
    np.testing.assert_allclose(values[0, 0], [0.25, 0, 0.75, 0.5, 0.8, 1], atol=1e-5)
    np.testing.assert_allclose(values[0, 1, 4:], [0.72, 1], atol=1e-5)  # it has no overlaps to suppress


@pytest.mark.parametrize(
    ("picture_shape", "shape", "fractions"),
    [
        ((1, 3, 64, 64), (1, 300, 6), False),
        ((1, 64, 64, 3), (1, 300, 6), True),
        ((1, 3, 64, 64), (1, 7, 84), True),
        ((1, 64, 64, 3), (1, 7, 84), True),
    ],
)
def test_boxes_of_a_tflite_file_are_fractions_but_for_those_of_a_new_one_that_suppresses(
    picture_shape: tuple[int, ...], shape: tuple[int, ...], fractions: bool
) -> None:
    inputs, outputs = TensorSpec("args_0", "FP32", picture_shape), TensorSpec("output_0", "FP32", shape)
    facts = read_ultralytics(ultralytics("detect", 64, end2end="true"), Path("m.tflite"), [inputs], [outputs])
    assert facts is not None
    assert facts.boxes is not None
    assert ("normalized" in facts.boxes) == fractions


@pytest.mark.parametrize("suppresses", [False, True])
def test_an_export_of_any_size_is_laid_out_as_it_says(tmp_path: Path, in_process: InProcess, suppresses: bool) -> None:
    boxes = np.zeros((1, 300, 6)) if suppresses else np.zeros((1, 7, 84))
    boxes[0, 0 if suppresses else slice(None), ... if suppresses else 5] = (
        [16, 24, 48, 40, 0.8, 1] if suppresses else [32, 32, 32, 16, 0.1, 0.8, 0.2]
    )
    arguments = str({"dynamic": True, "nms": suppresses})
    model = detecting(tmp_path / "best.onnx", ultralytics("detect", 64, args=arguments), boxes)
    graph = onnx.load(model)
    for value in (graph.graph.input[0], graph.graph.output[0]):
        for at, dimension in enumerate(value.type.tensor_type.shape.dim):
            if at != 1 or value is graph.graph.output[0]:
                dimension.dim_param = f"{value.name}{at}"
    onnx.save(graph, model)
    report = init(in_process, model)
    assert report["check"] == report["not_known"] == []
    _, values, _ = answered(model, (128, 64))
    np.testing.assert_allclose(values[0, 0], [0.25, 0.25, 0.75, 0.75, 0.8, 1], atol=1e-5)


@pytest.mark.parametrize(
    ("task", "shape", "said"),
    [
        ("detect", (1, 9, 84), "does not hold the 3 classes"),
        ("pose", (1, 56, 84), "do not have the layout of a known export"),
        ("depth", (1, 8, 84), "outputs of a model for depth are not decoded"),
    ],
)
def test_what_cannot_be_decoded_is_said_and_not_guessed(
    tmp_path: Path, in_process: InProcess, task: str, shape: tuple[int, ...], said: str
) -> None:
    report = init(in_process, detecting(tmp_path / "best.onnx", ultralytics(task, 64), np.zeros(shape)))
    assert said in report["not_known"][0]
    assert answered(tmp_path / "best.onnx")[0] == "tensor"


PROCESSORS: dict[str, tuple[dict[str, Any], set[str], list[float], list[float], float]] = {
    "vit": (
        {"size": {"height": 8, "width": 8}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 2},
        {"fit: stretch", "filter: bilinear"}, [0.5] * 3, [0.5] * 3, 1 / 255,
    ),
    "clip": (
        {"size": {"shortest_edge": 10}, "crop_size": {"height": 8, "width": 8}, "do_center_crop": True, "resample": 3,
         "image_mean": MEAN, "image_std": STD},
        {"to: [10, 10], fit: cover", "filter: bicubic", "crop: {from: image, to: [8, 8]}"}, MEAN, STD, 1 / 255,
    ),
    "convnext": (
        {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 8}, "crop_pct": 0.8,
         "image_mean": MEAN, "image_std": STD},
        {"to: [10, 10], fit: cover", "crop: {from: image, to: [8, 8]}"}, MEAN, STD, 1 / 255,
    ),
    "levit": (
        {"image_processor_type": "LevitImageProcessor", "size": {"shortest_edge": 14}, "do_center_crop": True,
         "crop_size": {"height": 8, "width": 8}, "image_mean": MEAN, "image_std": STD},
        {"to: [16, 16], fit: cover", "crop: {from: image, to: [8, 8]}"}, MEAN, STD, 1 / 255,
    ),
    "poolformer": (
        {"image_processor_type": "PoolFormerImageProcessorFast", "size": {"shortest_edge": 8}, "do_center_crop": True,
         "crop_size": {"height": 8, "width": 8}, "crop_pct": 0.8, "image_mean": MEAN, "image_std": STD},
        {"to: [10, 10], fit: cover", "crop: {from: image, to: [8, 8]}"}, MEAN, STD, 1 / 255,
    ),
    "efficientnet": (
        {"image_processor_type": "EfficientNetImageProcessor", "size": {"height": 8, "width": 8}, "resample": 0,
         "rescale_factor": 2 / 255, "rescale_offset": True, "include_top": True, "image_mean": MEAN, "image_std": STD},
        {"fit: stretch"}, [one + 1 for one in MEAN], [one * one for one in STD], 2 / 255,
    ),
    "plain": (
        {"size": 8, "do_normalize": False, "rescale_factor": 0.00784313725490196, "resample": 0},
        {"fit: stretch", "filter: nearest"}, [0] * 3, [1] * 3, 2 / 255,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("layout", ["flat", "optimum"])
def test_a_folder_of_hugging_face(tmp_path: Path, in_process: InProcess, name: str, layout: str) -> None:
    config, lines, mean, std, scale = PROCESSORS[name]
    model = averaging(tmp_path / ("onnx/model.onnx" if layout == "optimum" else "model.onnx"))
    labels = dict(enumerate(LABELS))
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": name, "architectures": ["XForImageClassification"], "id2label": labels})
    )
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    report = init(in_process, tmp_path)
    assert report["check"] == report["not_known"] == []
    text = model.with_name("model.yaml").read_text()
    assert [line for line in lines if line not in text] == []
    kind, values, told = answered(model)
    assert (kind, told) == ("logits", LABELS)
    np.testing.assert_allclose(values, [(np.array(RED) * scale - mean) / std], atol=0.02)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"do_flip_channel_order": True}, "it takes pictures as blue, green, red"),
        ({"do_thumbnail": True, "do_pad": False}, "no step does what `do_thumbnail` does"),
        ({"image_processor_type": "PerceiverImageProcessor"}, "the image processor of Perceiver is not known"),
    ],
)
def test_what_an_image_processor_does_besides_is_said(
    tmp_path: Path, in_process: InProcess, change: dict[str, Any], said: str
) -> None:
    model = averaging(tmp_path / "model.onnx")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x", "architectures": ["XForImageClassification"]}))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": {"height": 8, "width": 8}, **change}))
    (note,) = init(in_process, model)["not_known"]
    assert said in note


@pytest.fixture
def exported(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of the files of an exporter, to be written into."""
    return lambda name: Path(shutil.copytree(FOLDER / name, tmp_path / name))


EXPECTED = json.loads((FOLDER / "expected.json").read_text())


def test_a_text_classifier_of_optimum(exported: Callable[[str], Path], in_process: InProcess) -> None:
    folder = exported("optimum_bert")
    report = init(in_process, folder, "--try", TEXTS[0])
    assert report["check"] == report["not_known"] == []
    text = (folder / "model.yaml").read_text()
    assert "tokenize: {from: text, tokenizer: tokenizer.json, max_tokens: 32, pad_id: 0}" in text
    texts = np.array([text.encode() for text in TEXTS], object)
    (output,), answers = asked(folder / "model.onnx", {"text": texts})
    assert (output.kind, output.labels) == ("logits", LABELS)
    np.testing.assert_allclose(answers[output.name], EXPECTED["texts"], atol=1e-4)
    best = int(np.argmax(EXPECTED["texts"][0]))
    assert report["tried"]["found"][0].endswith(LABELS[best])
    long = init(in_process, folder, "--force", "--try", "the fox " * 50)  # no name of a file can be so long
    assert long["tried"]["found"]
    (folder / "sample.txt").write_text(TEXTS[0])
    assert init(in_process, folder, "--force", "--try", folder / "sample.txt")["tried"] == report["tried"]


@pytest.mark.parametrize(
    ("change", "most"),
    [({"model_type": "roberta"}, 32 - 2), ({"model_type": "xlm-roberta", "pad_token_id": 0}, 32 - 1)],
)
def test_positions_are_counted_after_the_padding_by_models_of_robertas_kind(
    exported: Callable[[str], Path], in_process: InProcess, change: dict[str, Any], most: int
) -> None:
    folder = exported("optimum_bert")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "pad_token_id": 1, **change}))
    (folder / "tokenizer_config.json").unlink()
    init(in_process, folder)
    assert f"max_tokens: {most}," in (folder / "model.yaml").read_text()


def test_a_tokenizer_of_the_folder_above_comes_beside_the_model(
    exported: Callable[[str], Path], in_process: InProcess
) -> None:
    folder = exported("optimum_bert")
    (folder / "onnx").mkdir()
    (folder / "model.onnx").rename(folder / "onnx" / "model.onnx")
    init(in_process, folder, "--try", "the fox")
    assert (folder / "onnx" / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    (folder / "onnx" / "tokenizer.json").write_text("mine")
    assert "tokenizer.json: already exists" in refused(
        in_process("model", "init", folder, "--out", folder / "onnx" / "another.yaml")
    )
    assert (folder / "onnx" / "tokenizer.json").read_text() == "mine"


def test_a_picture_classifier_of_optimum(exported: Callable[[str], Path], in_process: InProcess) -> None:
    folder = exported("optimum_vit")
    report = init(in_process, folder, "--try", FOLDER / "photo.png")
    assert report["check"] == report["not_known"] == []
    (output,), answers = asked(
        folder / "model.onnx", {"image": np.array([(FOLDER / "photo.png").read_bytes()], object)}
    )
    assert (output.kind, output.labels) == ("logits", LABELS)
    np.testing.assert_allclose(answers[output.name], EXPECTED["photo"], atol=1e-3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokenizer.json": None}, "there is no tokenizer.json"),
        ({"config.json": {"architectures": ["BertForTokenClassification"]}}, "it labels each token"),
        ({"config.json": {"problem_type": "multi_label_classification"}}, "each label is yes or no independently"),
        ({"config.json": {"problem_type": "regression"}}, "it gives numbers instead of classes"),
        ({"tokenizer.json": b"{"}, "not a tokenizer.json"),
    ],
)
def test_what_a_folder_of_texts_lacks_is_said(
    exported: Callable[[str], Path], in_process: InProcess, change: dict[str, Any], said: str
) -> None:
    folder = exported("optimum_bert")
    for name, content in change.items():
        if content is None:
            (folder / name).unlink()
        elif isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | content))
    assert said in init(in_process, folder)["not_known"][0]


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "labels.txt"])
def test_a_file_beside_it_of_a_gigabyte_is_not_read(
    exported: Callable[[str], Path], in_process: InProcess, name: str
) -> None:
    folder = exported("optimum_bert")
    with (folder / name).open("ab") as file:
        file.truncate(1 << 30)
    done = in_process("model", "init", folder, "--json")
    if name == "tokenizer.json":
        assert done.code == 0
        assert "is larger than" in json.loads(done.out)["not_known"][0]
    else:
        assert name in refused(done)


@pytest.mark.parametrize(
    ("kind", "classes"), [("yolos", (*LABELS, "none")), ("rt_detr", LABELS), ("conditional_detr", LABELS)]
)
def test_a_detector_of_hugging_face(tmp_path: Path, in_process: InProcess, kind: str, classes: tuple[str, ...]) -> None:
    has_none = len(classes) > len(LABELS)
    scores = np.full((1, 5, len(classes)), 0.0 if has_none else -9.0)
    scores[0, :, 3:] = 9  # none
    scores[0, 2, :2] = [1, 12]
    boxes = np.full((1, 5, 4), 0.5)
    nodes = [
        helper.make_node("ReduceMean", ["pixel_values"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "nothing"], ["none"]),
        helper.make_node("Add", ["scores", "none"], ["logits"]),
        helper.make_node("Add", ["boxes", "none"], ["pred_boxes"]),
    ]
    constants = {
        "scores": scores.astype(np.float32),
        "boxes": boxes.astype(np.float32),
        "nothing": np.zeros(1, np.float32),
    }
    outputs = [tensor("logits", list(scores.shape)), tensor("pred_boxes", [1, 5, 4])]
    save(tmp_path / "model.onnx", nodes, [tensor("pixel_values", [1, 3, 32, 32])], outputs, constants)
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": kind, "id2label": dict(enumerate(LABELS)), "architectures": ["XForObjectDetection"]})
    )
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": {"height": 32, "width": 32}}))
    report = init(in_process, tmp_path)
    assert report["check"] == report["not_known"] == []
    kind, values, labels = answered(tmp_path / "model.onnx")
    assert (kind, labels) == ("detections", classes)
    np.testing.assert_allclose(values[0, 0, [0, 1, 2, 3, 5]], [0.25, 0.25, 0.75, 0.75, 1], atol=1e-5)
    assert values[0, 1, 5] == -1
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "x-detr", "id2label": dict(enumerate(LABELS)), "architectures": ["XForDetection"]})
    )
    assert "the logits of a x-detr are not known" in init(in_process, tmp_path, "--force")["not_known"][0]


@pytest.mark.parametrize("name", ["sklearn", "xgboost", "lightgbm"])
def test_a_model_of_trees(tmp_path: Path, in_process: InProcess, name: str) -> None:
    model = Path(shutil.copy(FOLDER / f"{name}.onnx", tmp_path / "model.onnx"))
    (tmp_path / "labels.txt").write_text("setosa\nversicolor\nvirginica\n")
    report = init(in_process, model)
    assert report["check"] == report["not_known"] == []
    expected = arrays("trees.npz")
    outputs, answers = asked(model, {report["inputs"][0]["name"]: expected["rows"]})
    scores = next(one for one in outputs if one.kind == "probabilities")
    assert scores.labels == ("setosa", "versicolor", "virginica")
    np.testing.assert_allclose(answers[scores.name], expected[name], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("sklearn_raw", "logits", "raw scores"),
        ("xgboost_raw", "logits", "raw scores"),
        ("sklearn_distances", "tensor", ""),
    ],
)
def test_scores_that_are_no_probabilities(
    tmp_path: Path, in_process: InProcess, name: str, kind: str, said: str
) -> None:
    model = Path(shutil.copy(FOLDER / f"{name}.onnx", tmp_path / "model.onnx"))
    report = init(in_process, model)
    outputs, _ = asked(model, {report["inputs"][0]["name"]: arrays("trees.npz")["rows"]})
    assert [one.kind for one in outputs] == ["tensor", kind]
    assert [one["comment"][: len(said)] for one in report["check"]] == ([said] if said else [])


@pytest.mark.parametrize(
    ("operator", "kind"), [("Softmax", "probabilities"), ("Sigmoid", "tensor"), ("Identity", "tensor")]
)
@pytest.mark.parametrize("rows", ["N", 1])
def test_a_name_alone_makes_no_probabilities(
    tmp_path: Path, in_process: InProcess, operator: str, kind: str, rows: str | int
) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node(operator, ["y"], ["probabilities"])]
    weights = {"w": np.arange(12, dtype=np.float32).reshape(4, 3) - 5}
    save(tmp_path / "model.onnx", nodes, [tensor("x", [rows, 4])], [tensor("probabilities", [rows, 3])], weights)
    report = init(in_process, tmp_path / "model.onnx")
    outputs, _ = asked(tmp_path / "model.onnx", {"x": np.ones((1, 4), np.float32)})
    assert outputs[0].kind == kind
    assert len(report["check"]) == (operator == "Identity")
    assert len(report["not_known"]) == (operator == "Sigmoid")


def test_a_softmax_over_rows_makes_no_probabilities(tmp_path: Path, in_process: InProcess) -> None:
    nodes = [helper.make_node("Softmax", ["x"], ["probabilities"], axis=0)]
    save(tmp_path / "model.onnx", nodes, [tensor("x", [2, 4])], [tensor("probabilities", [2, 4])])
    init(in_process, tmp_path / "model.onnx")
    outputs, _ = asked(tmp_path / "model.onnx", {"x": np.ones((2, 4), np.float32)})
    assert outputs[0].kind == "tensor"


def test_a_zipmap_is_refused_with_what_leaves_it_out(tmp_path: Path, in_process: InProcess) -> None:
    model = Path(shutil.copy(FOLDER / "sklearn_zipmap.onnx", tmp_path / "model.onnx"))
    assert "options={'zipmap': False}" in refused(in_process("model", "init", model))


def test_a_model_of_timm(tmp_path: Path, in_process: InProcess) -> None:
    model = averaging(tmp_path / "model.onnx")
    own = {"input_size": [3, 8, 8], "interpolation": "bicubic", "crop_pct": 0.8, "mean": MEAN, "std": STD}
    (tmp_path / "config.json").write_text(
        json.dumps({"architecture": "resnet18", "num_classes": 3, "label_names": list(LABELS), "pretrained_cfg": own})
    )
    report = init(in_process, model)
    assert (report["check"], report["source"]) == ([], "timm's config.json (resnet18)")
    kind, values, labels = answered(model)
    assert (kind, labels) == ("logits", LABELS)
    np.testing.assert_allclose(values, [(np.array(RED) / 255 - MEAN) / STD], atol=0.02)
    assert "to: [10, 10], fit: cover, filter: bicubic" in model.with_name("model.yaml").read_text()


@pytest.mark.parametrize(
    ("change", "line", "said"),
    [
        ({"crop_mode": "squash"}, "to: [10, 10], fit: stretch, filter: bicubic", 0),
        ({"crop_mode": "border", "mean": [0.5] * 3}, "to: [10, 10], fit: contain, filter: bicubic, fill: 128", 0),
        ({"crop_mode": "border"}, "fit: contain", "the mean of each channel"),
        ({"interpolation": "lanczos"}, "filter: bicubic", "'lanczos'"),
    ],
)
def test_how_timm_crops(
    tmp_path: Path, in_process: InProcess, change: dict[str, Any], line: str, said: str | int
) -> None:
    model = averaging(tmp_path / "model.onnx")
    own = {"input_size": [3, 8, 8], "crop_pct": 0.8, "mean": MEAN, "std": STD, **change}
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "x", "pretrained_cfg": own}))
    notes = init(in_process, model)["not_known"]
    text = model.with_name("model.yaml").read_text()
    assert line in text
    assert "crop: {from: image, to: [8, 8]}" in text
    assert (said in notes[0]) if isinstance(said, str) else notes == []


@pytest.mark.parametrize("datatype", ["uint8", "fp32"])
def test_metadata_that_tflite_support_has_written(tmp_path: Path, in_process: InProcess, datatype: str) -> None:
    model = Path(shutil.copy(FOLDER / f"tflite_support_{datatype}.tflite", tmp_path / "model.tflite"))
    report = init(in_process, model)
    assert report["source"] == "its TFLite metadata"
    assert all(
        "fit" in one["comment"] or "scores" in one["comment"] for one in report["check"]
    )  # which it does not say
    _, values, labels = answered(model)
    assert labels == LABELS
    np.testing.assert_allclose(values, [(np.array(RED) - 127.5) / 127.5], atol=0.01)


def test_labels_beside_a_model_count_where_there_are_as_many_as_classes(tmp_path: Path, in_process: InProcess) -> None:
    model = averaging(tmp_path / "model.onnx")
    (tmp_path / "classes.txt").write_text("\n".join(LABELS) + "\n")
    init(in_process, model)
    assert answered(model)[2] == LABELS
    (tmp_path / "labels.txt").unlink()
    (tmp_path / "classes.txt").write_text("one\ntwo\n")
    init(in_process, model, "--force")
    assert answered(model)[2] == ()
    assert not (tmp_path / "labels.txt").exists()


@pytest.mark.parametrize("written", [b"a\nb\nc", b"a\r\nb\r\nc\r\n", b"\xef\xbb\xbfa\nb\nc\n"])
def test_labels_beside_a_model_stay_as_they_are_written(tmp_path: Path, in_process: InProcess, written: bytes) -> None:
    model = averaging(tmp_path / "model.onnx")
    (tmp_path / "labels.txt").write_bytes(written)
    init(in_process, model)
    assert answered(model)[2] == ("a", "b", "c")
    assert (tmp_path / "labels.txt").read_bytes() == written


def test_a_pipe_is_no_picture_and_is_not_waited_for(tmp_path: Path, in_process: InProcess) -> None:
    model = averaging(tmp_path / "model.onnx")
    os.mkfifo(tmp_path / "photo.png")
    says = refused(in_process("model", "init", model, "--try", tmp_path / "photo.png"))
    assert "not a regular file" in says
    assert "model.yaml: is written all the same; --force replaces it" in says
    assert (tmp_path / "model.yaml").exists()


def test_probabilities_are_told_from_logits_by_running_the_model(tmp_path: Path, in_process: InProcess) -> None:
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["means"]),
        helper.make_node("Flatten", ["means"], ["flat"]),
        helper.make_node("Softmax", ["flat"], ["out"]),
    ]
    save(tmp_path / "model.onnx", nodes, [tensor("x", ["N", 3, 8, 8])], [tensor("out", ["N", 3])])
    init(in_process, tmp_path / "model.onnx")
    assert answered(tmp_path / "model.onnx")[0] == "probabilities"


def test_pictures_of_halves(tmp_path: Path, in_process: InProcess) -> None:
    nodes = [helper.make_node("ReduceMean", ["images"], ["output0"], axes=[2, 3], keepdims=0)]
    halves = [tensor("images", [1, 3, 8, 8], "FP16")], [tensor("output0", [1, 3], "FP16")]
    model = described(save(tmp_path / "best.onnx", nodes, *halves), ultralytics("classify", 8))
    report = init(in_process, model, "--try", picture(tmp_path / "photo.png"))
    assert report["check"] == report["not_known"] == []
    kind, values, labels = answered(model)
    assert (kind, labels, values.dtype.name) == ("probabilities", LABELS, "float16")
    np.testing.assert_allclose(values, [np.array(RED) / 255], atol=0.001)


def test_facts_that_do_not_fit_the_tensors_are_said_and_left_out(tmp_path: Path, in_process: InProcess) -> None:
    names = "{0: 'a', 1: 'b', 2: 'c', 3: 'd'}"
    model = averaging(tmp_path / "best.onnx", metadata=ultralytics("classify", 8, names), name="output0")
    report = init(in_process, model)
    assert report["not_known"] == ["its Ultralytics metadata (classify) names 4 classes, but no output has that many"]
    assert answered(model)[::2] == ("probabilities", ())
    own = {"input_size": [3, 8, 8], "mean": MEAN[:2], "std": STD[:2]}
    model = averaging(tmp_path / "timm" / "model.onnx")
    (tmp_path / "timm" / "config.json").write_text(json.dumps({"architecture": "a", "pretrained_cfg": own}))
    report = init(in_process, model)
    assert "does not fit the model's tensors" in report["not_known"][0]
    assert answered(model)[0] == "logits"


def refused(done: CommandResult) -> str:
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert done.err.count("\n") <= 2
    return done.err

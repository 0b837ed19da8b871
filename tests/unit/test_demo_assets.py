"""The committed models of `upwell demo`, run by the bare runtimes on digits that they never saw."""

from __future__ import annotations

import importlib
import io
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from upwell.shared.config.yaml import load_yaml
from upwell.shared.signature.model_yaml import ImageInput, ModelDescription
from upwell.shared.signature.processor import Processor
from upwell.shared.signature.signature import Signature, UplinkEncoding
from upwell.shared.signature.uplink_pictures import encode_for_uplink
from upwell.shared.tensors import Array, TensorSpec
from upwell.tools.demo.digit_data import ASSETS, Page, digit_png, heldout, pages

tflite = pytest.importorskip("ai_edge_litert.interpreter")
TASKS = ("digits", "pages")


@cache
def demo_pages() -> list[Page]:
    return pages(10, seed=3)


def labels(task: str) -> Array:
    return heldout().labels if task == "digits" else np.stack([page.labels for page in demo_pages()])


def pictures(task: str, zoom: int) -> Array:
    """float32 [n, height, width] in 0..1, each picture decoded from its PNG and resized as pre-processing does."""
    pngs = [digit_png(one) for one in heldout().images] if task == "digits" else [page.png for page in demo_pages()]
    decoded = [Image.open(io.BytesIO(png)) for png in pngs]
    larger = [one.resize((one.width * zoom, one.height * zoom), Image.Resampling.BILINEAR) for one in decoded]
    rows: Array = np.stack([np.asarray(one) for one in larger]).astype(np.float32) * np.float32(1 / 255)
    return rows


def edge_file(task: str, name: str) -> Path:
    return ASSETS / "edge" / task / name


def cloud_file(task: str, name: str) -> Path:
    return ASSETS / "cloud" / f"{task}-large" / "1" / name


def session(path: Path) -> Any:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@cache
def edge_onnx(task: str) -> Array:
    logits: Array = session(edge_file(task, "model.onnx")).run(["logits"], {"x": pictures(task, 1)[:, None]})[0]
    return logits


@cache
def cloud_onnx(task: str) -> Array:
    logits: Array = session(cloud_file(task, "model.onnx")).run(["logits"], {"x": pictures(task, 4)[..., None]})[0]
    return logits


def edge_tflite(task: str) -> Array:
    runner = tflite.Interpreter(str(edge_file(task, "model.tflite"))).get_signature_runner()
    return np.concatenate([runner(x=row[None, None])["logits"] for row in pictures(task, 1)])


def torch_class(task: str) -> Any:
    pytest.importorskip("torch")
    module = importlib.import_module("upwell.cloud.engines.torch.demo")
    return {"digits": module.LargeNet, "pages": module.LargePageNet}[task]


def accuracy(logits: Array, truth: Array) -> float:
    return float((logits.argmax(-1) == truth).mean())


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("predict", [edge_onnx, edge_tflite])
def test_int8_models_read_most_digits_and_leave_the_cloud_something_to_win(task: str, predict: Any) -> None:
    assert 0.92 <= accuracy(predict(task), labels(task)) <= 0.97


@pytest.mark.parametrize("task", TASKS)
def test_large_onnx_model_reads_nearly_every_digit(task: str) -> None:
    assert accuracy(cloud_onnx(task), labels(task)) >= 0.985


@pytest.mark.parametrize("task", TASKS)
def test_safetensors_and_onnx_of_the_large_models_agree(task: str) -> None:
    torch = pytest.importorskip("torch")
    weights = pytest.importorskip("safetensors.torch").load_file(cloud_file(task, "model.safetensors"))
    net = torch_class(task)()
    net.load_state_dict(weights)
    with torch.inference_mode():
        logits = net.eval()(torch.from_numpy(pictures(task, 4)[..., None])).numpy()
    np.testing.assert_allclose(logits, cloud_onnx(task), atol=1e-3)


@pytest.mark.parametrize("task", TASKS)
def test_torch_class_names_the_tensors_of_the_onnx_file(task: str) -> None:
    kind = torch_class(task)
    model = session(cloud_file(task, "model.onnx"))
    for declared, actual in ((kind.inputs, model.get_inputs()), (kind.outputs, model.get_outputs())):
        assert declared == tuple((one.name, "FP32", (-1, *one.shape[1:])) for one in actual)
        assert [one.shape[0] for one in actual] == ["batch"]


@pytest.mark.parametrize("task", TASKS)
def test_margin_says_which_digits_the_cloud_should_read(task: str) -> None:
    odds = np.exp(edge_onnx(task) - edge_onnx(task).max(-1, keepdims=True)).reshape(-1, 10)
    top = np.sort(odds / odds.sum(-1, keepdims=True), axis=-1)
    hardest = (top[:, -1] - top[:, -2]).argsort()[: len(top) // 5]
    answers, truth = edge_onnx(task).argmax(-1).ravel(), labels(task).ravel()
    alone = (answers == truth).mean()
    answers[hardest] = cloud_onnx(task).argmax(-1).ravel()[hardest]
    best = accuracy(cloud_onnx(task), labels(task))
    assert (answers == truth).mean() - alone >= 0.8 * (best - alone)


@pytest.mark.parametrize("task", TASKS)
def test_models_of_the_device_are_small_and_fit_old_runtimes(task: str) -> None:
    onnx = pytest.importorskip("onnx")
    assert max(edge_file(task, name).stat().st_size for name in ("model.onnx", "model.tflite")) < 20_000
    for path in (edge_file(task, "model.onnx"), cloud_file(task, "model.onnx")):
        model = onnx.load(path)
        assert model.ir_version <= 10
        assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 18)]


def test_assets_are_small_together() -> None:
    assert sum(path.stat().st_size for path in ASSETS.rglob("*") if path.is_file()) < 2_500_000


def callers_see(description: ModelDescription) -> object:
    """The signature without what only the device does with it: how pictures are made smaller before they go up."""
    document = description.signature.model_dump()
    for one in document["inputs"].values():
        one.pop("uplink", None)
    return document


def test_pages_go_up_in_half_the_bytes_and_are_read_as_well() -> None:
    """By the uplink that the device's model.yaml names; docs/performance.md has the figures of 150 pages."""
    shown = pages(40, seed=99)
    model = session(cloud_file("pages", "model.onnx"))
    given, made = ([TensorSpec("x", "FP32", (-1, 192, 320, 1))], [TensorSpec("logits", "FP32", (-1, 60, 10))])
    processor = Processor(load_yaml(cloud_file("pages", "model.yaml"), ModelDescription), given, made, "onnx")
    described = load_yaml(edge_file("pages", "model.yaml"), ModelDescription).signature.inputs["image"]
    assert isinstance(described, ImageInput)
    assert described.uplink is not None
    encoding = UplinkEncoding(described.uplink.encode, described.uplink.quality, recode=described.uplink.recode)
    image = replace(processor.signature.inputs[0], uplink=encoding)
    came = np.array([page.png for page in shown], object)
    sent = encode_for_uplink(Signature((image,), (), has_rows=True), {"image": came}, processor.resizes)["image"]
    assert sum(map(len, sent)) <= sum(map(len, came)) / 2

    def right(rows: Array) -> float:
        tensors = processor.pre({"image": rows}).tensors
        read = model.run(["logits"], dict(tensors))[0].argmax(-1)
        return float((read == np.stack([page.labels for page in shown])).mean())

    assert right(sent) >= right(came) - 0.001


@pytest.mark.parametrize("task", TASKS)
def test_descriptions_of_both_sides_have_one_signature(task: str) -> None:
    edge = load_yaml(edge_file(task, "model.yaml"), ModelDescription)
    large = load_yaml(cloud_file(task, "model.yaml"), ModelDescription)
    assert callers_see(edge) == callers_see(large)
    assert edge.signature.outputs["scores"].labels == tuple("0123456789")
    assert edge.pre != large.pre


def test_tflite_names_its_tensors_as_onnx_does() -> None:
    for task in TASKS:
        interpreter = tflite.Interpreter(str(edge_file(task, "model.tflite")))
        assert interpreter.get_signature_list() == {"serving_default": {"inputs": ["x"], "outputs": ["logits"]}}
        (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
        assert (given["name"], given["dtype"], made["name"], made["dtype"]) == ("x", np.float32, "logits", np.float32)


@pytest.mark.slow
def test_held_out_digits_are_the_third_of_the_data_that_training_left_out() -> None:
    from sklearn.datasets import load_digits  # takes a second
    from sklearn.model_selection import train_test_split

    data, split = load_digits(), heldout()
    images = np.rint(data.images * (255 / 16)).astype(np.uint8)
    seen, unseen, _, truth = train_test_split(images, data.target, test_size=0.33, random_state=0, stratify=data.target)
    assert split.images.dtype == np.uint8
    assert split.labels.dtype == np.int64
    np.testing.assert_array_equal(split.images, unseen)
    np.testing.assert_array_equal(split.labels, truth)
    assert not {one.tobytes() for one in split.images} & {one.tobytes() for one in seen}


def test_pages_depend_on_the_seed_alone() -> None:
    assert [page.png for page in pages(2, seed=7)] == [page.png for page in pages(2, seed=7)]
    assert pages(1, seed=7)[0].png != pages(1, seed=8)[0].png


def test_page_shows_held_out_digits_in_the_order_of_its_labels() -> None:
    (page,), split = pages(1, seed=5), heldout()
    picture = np.asarray(Image.open(io.BytesIO(page.png))).astype(np.int64)
    assert picture.shape == (48, 80)
    cells = picture.reshape(6, 8, 10, 8).transpose(0, 2, 1, 3).reshape(60, 1, 64)
    nearest = np.abs(cells - split.images.reshape(1, -1, 64)).sum(-1).argmin(-1)
    np.testing.assert_array_equal(split.labels[nearest], page.labels)
    assert len(set(nearest)) == 60


def test_pages_are_the_large_cases() -> None:
    assert max(len(digit_png(one)) for one in heldout().images) < 250
    assert min(len(page.png) for page in demo_pages()) > 2_000

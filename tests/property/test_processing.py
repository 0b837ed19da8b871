"""Processing: laws that hold for every shape, number and picture."""

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from PIL import Image

from tests.examples import examples
from upwell.shared.config.yaml import parse_yaml
from upwell.shared.errors import InvalidRequest
from upwell.shared.signature.model_yaml import Dequantize, ModelDescription, Quantize, Resize
from upwell.shared.signature.picture_codec import decode
from upwell.shared.signature.picture_transforms import resize
from upwell.shared.signature.postprocess import dequantize, sigmoid, softmax, top_k
from upwell.shared.signature.preprocess import quantize
from upwell.shared.signature.processor import Processor
from upwell.shared.signature.signature import own_signature
from upwell.shared.signature.step_values import Geometry, Pictures
from upwell.shared.tensors import DTYPES, Array, TensorSpec
from upwell.tools.model_init.model_yaml_draft import starting_description

FLOATS = npst.arrays(np.float32, npst.array_shapes(min_dims=1, max_dims=3, max_side=6), elements=st.floats(width=32))
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


@st.composite
def batches(draw: st.DrawFn) -> dict[str, Array]:
    rows = draw(st.integers(1, 6))
    texts = np.empty(rows, np.object_)
    texts[:] = [draw(st.binary(max_size=5)) for _ in range(rows)]
    return {"x": draw(npst.arrays(np.float32, (rows, 3), elements=st.floats(-9, 9, width=32))), "t": texts}


@settings(max_examples=examples(100), deadline=None)
@given(batches(), st.randoms())
def test_rows_taken_apart_come_together_again(batch: dict[str, Array], random: Any) -> None:
    specs = [TensorSpec("x", "FP32", (-1, 3)), TensorSpec("t", "BYTES", (-1,))]
    signature = own_signature(specs, specs)
    rows = signature.check_inputs(batch)
    order = list(range(rows))
    random.shuffle(order)
    cut = random.randrange(rows + 1)
    parts = [(part, signature.select_rows(batch, part)) for part in (order[:cut], order[cut:]) if part]
    merged = signature.merge_rows(parts, rows)
    assert all(np.array_equal(merged[name], batch[name]) for name in batch)
    sizes = signature.row_sizes_bytes(batch)
    assert [size for part, _ in parts for size in [sizes[row] for row in part]] == [
        size for _, inputs in parts for size in signature.row_sizes_bytes(inputs)
    ]


@settings(max_examples=examples(150), deadline=None)
@given(FLOATS)
def test_softmax_sums_to_one_or_is_nan(x: Array) -> None:
    result = softmax(x)
    has_nan = np.isnan(x).any(axis=-1)
    assert np.isnan(result[has_nan]).all()
    np.testing.assert_allclose(result[~has_nan].sum(axis=-1), 1, atol=1e-5)
    assert ((result >= 0) | np.isnan(result)).all()


@settings(max_examples=examples(100), deadline=None)
@given(FLOATS)
def test_sigmoid_stays_between_0_and_1(x: Array) -> None:
    result = sigmoid(x)
    assert np.array_equal(np.isnan(result), np.isnan(x))
    assert ((result >= 0) & (result <= 1) | np.isnan(x)).all()


@settings(max_examples=examples(100), deadline=None)
@given(FLOATS, st.data())
def test_top_k_is_the_head_of_a_stable_sort(x: Array, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, x.shape[-1]))
    scores, classes = top_k(x, k)
    for row, best, chosen in zip(
        x.reshape(-1, x.shape[-1]), scores.reshape(-1, k), classes.reshape(-1, k), strict=True
    ):
        order = sorted(range(len(row)), key=lambda n: (bool(np.isnan(row[n])), -row[n] if row[n] == row[n] else 0, n))
        assert chosen.tolist() == order[:k]
        np.testing.assert_array_equal(best, row[chosen])


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from(["INT8", "UINT8", "INT16", "UINT16"]), st.floats(1e-3, 10), st.data())
def test_quantizing_what_was_dequantized_changes_nothing(dtype: Any, scale: float, data: st.DataObject) -> None:
    limits = np.iinfo(DTYPES[dtype])
    zero_point = data.draw(st.integers(int(limits.min), int(limits.max)))
    x = data.draw(npst.arrays(DTYPES[dtype], 8))
    real = dequantize(x, Dequantize(scale=scale, zero_point=zero_point))
    assert np.array_equal(quantize(real, Quantize(scale=scale, zero_point=zero_point, dtype=dtype)), x)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.tuples(st.integers(1, 300), st.integers(1, 300)),
    st.tuples(st.integers(1, 80), st.integers(1, 80)),
    st.sampled_from(["stretch", "cover", "contain"]),
    st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
def test_a_point_of_the_original_comes_back(
    size: tuple[int, int], to: tuple[int, int], fit: Any, corners: list[float]
) -> None:
    """There by the geometry's own map, back by `to_original`; what is seen of the model's picture lies inside it."""
    pictures = Pictures([np.zeros((*size, 1), np.uint8)], Geometry.of([(size[1], size[0])]), 10_000_000)
    geometry = resize(pictures, Resize(to=to, fit=fit)).geometry
    original = np.array([corners])
    pixels = original * np.tile(geometry.original[0], 2) * np.tile(geometry.scale[0], 2) + np.tile(
        geometry.offset[0], 2
    )
    np.testing.assert_allclose(geometry.to_original(pixels, 0, normalized=False), original, atol=1e-9)
    if fit != "cover":
        assert (pixels >= -1e-9).all()
        assert (pixels <= np.tile(geometry.size[0], 2) + 1e-9).all()


def _seed(form: str) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 17, 3), dtype=np.uint8)
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(file, form, exif=exif)
    return file.getvalue()


SEEDS = [_seed(form) for form in ("JPEG", "PNG", "WEBP")]


@pytest.mark.filterwarnings("ignore::UserWarning:PIL.TiffImagePlugin")
@settings(max_examples=examples(250), deadline=None)
@given(st.sampled_from(SEEDS), st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4), st.data())
def test_a_damaged_picture_is_decoded_or_refused(
    seed: bytes, damage: list[tuple[int, int]], data: st.DataObject
) -> None:
    broken = bytearray(seed[: data.draw(st.integers(0, len(seed)))] if data.draw(st.booleans()) else seed)
    for place, value in damage:
        if broken:
            broken[place % len(broken)] = value
    try:
        pixels = decode(bytes(broken), "rgb", 100_000)
    except InvalidRequest:
        return
    assert pixels.dtype == np.uint8
    assert pixels.shape[2] == 3
    assert pixels.size <= 300_000


tensor_specs = st.builds(
    TensorSpec,
    names,
    st.sampled_from(["FP32", "FP32", "UINT8", "INT8", "FP16", "INT64", "BYTES"]),
    st.lists(st.sampled_from([-1, 1, 1, 2, 3, 4, 8, 85, 100, 8400]), max_size=4).map(tuple),
)


@settings(max_examples=examples(400), deadline=None)
@given(
    st.lists(tensor_specs, min_size=1, max_size=3, unique_by=lambda spec: spec.name),
    st.lists(tensor_specs, min_size=1, max_size=3, unique_by=lambda spec: spec.name),
)
def test_a_starting_description_loads_for_its_tensors(inputs: list[TensorSpec], outputs: list[TensorSpec]) -> None:
    text = starting_description(inputs, outputs)
    processor = Processor(parse_yaml(text, ModelDescription), inputs, outputs, "onnx")
    assert processor.signature.inputs


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 7), st.integers(1, 4))
def test_chunks_change_nothing(rows: int, fixed: int) -> None:
    def run(tensors: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": tensors["x"] * 2 + 1}

    text = (
        "version: 1\n"
        "signature: {inputs: {x: {kind: tensor, dtype: FP32, shape: [-1, 2]}}, outputs: {y: {kind: tensor}}}"
    )
    specs = [TensorSpec("x", "FP32", (fixed, 2))], [TensorSpec("y", "FP32", (fixed, 2))]
    processor = Processor(parse_yaml(text, ModelDescription), *specs, "onnx")
    x = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    prepared = processor.pre({"x": x})
    outputs = processor.post(processor.run_rows(run, prepared), prepared)
    assert np.array_equal(outputs["y"], run({"x": x})["y"])

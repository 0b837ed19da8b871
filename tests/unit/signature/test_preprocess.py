"""Steps before the model, each against what it says it computes."""

from typing import Any

import numpy as np
import pytest

from upwell.shared.errors import InvalidRequest
from upwell.shared.signature.model_yaml import Crop, Normalize, Quantize, Resize
from upwell.shared.signature.picture_transforms import crop, decode_pictures, pictures_of, resize
from upwell.shared.signature.preprocess import normalize, planes, quantize, transpose
from upwell.shared.signature.step_values import Geometry, Pictures
from upwell.shared.tensors import Array

FITS = ("stretch", "cover", "contain")


def f32(values: Any) -> Array:
    return np.array(values, dtype=np.float32)


def f64(values: Any) -> Array:
    return np.array(values, dtype=np.float64)


def noise(*shape: int) -> Array:
    return np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8)


def several(*sizes: tuple[int, int], channels: int = 3) -> Pictures:
    rows = [noise(height, width, channels) for height, width in sizes]
    return Pictures(rows, Geometry.of([(width, height) for height, width in sizes]), 10_000_000)


def test_normalize_is_its_formula() -> None:
    x = noise(2, 4, 5, 3)
    op = Normalize(scale=1 / 255, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    expected = (x / 255 - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    result = normalize(x, op, 3)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, atol=1e-6)
    np.testing.assert_array_equal(normalize(x.transpose(0, 3, 1, 2), op, 1).transpose(0, 2, 3, 1), result)


def test_normalize_to_halves_rounds_once() -> None:
    x = noise(2, 4, 5, 3)
    keys: dict[str, Any] = {"scale": 1 / 255, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    result = normalize(x, Normalize(**keys, dtype="FP16"), 3)
    np.testing.assert_array_equal(result, normalize(x, Normalize(**keys), 3).astype(np.float16))
    turned = planes(x, Normalize(**keys, dtype="FP16"))
    np.testing.assert_array_equal(turned, result.transpose(0, 3, 1, 2))
    assert normalize(f32([[1e30]]), Normalize(dtype="FP16"), 1).tolist() == [[np.inf]]


def test_normalize_by_default_brings_bytes_to_0_to_1_and_leaves_its_input_alone() -> None:
    x = np.array([[0, 51, 255]], np.uint8)
    np.testing.assert_allclose(normalize(x, Normalize(), 1), [[0, 0.2, 1]], atol=1e-7)
    already = np.ones((1, 2), np.float32)
    normalize(already, Normalize(scale=1, mean=5), 1)
    assert already.tolist() == [[1, 1]]


def test_quantize_rounds_half_to_even_and_clips() -> None:
    x = np.array([-10, 0, 0.25, 0.75, 1.25, 3, 1000, np.inf, -np.inf], np.float32)
    result = quantize(x, Quantize(scale=0.5, zero_point=-3, dtype="INT8"))
    assert result.dtype == np.int8
    assert result.tolist() == [-23, -3, -3, -1, -1, 3, 127, 127, -128]
    assert quantize(x, Quantize(scale=0.5, zero_point=10, dtype="UINT8")).tolist()[0] == 0
    assert quantize(f64([[1e300]]), Quantize(scale=1, dtype="INT16")).tolist() == [[32767]]


def test_normalize_refuses_another_number_of_channels() -> None:
    with pytest.raises(InvalidRequest, match=r"expected 3 channels to normalize, got \[1, 4\]"):
        normalize(np.zeros((1, 4), np.uint8), Normalize(mean=(1, 2, 3)), 1)


def test_pictures_without_pixels() -> None:
    with pytest.raises(InvalidRequest, match=r"expected pictures with pixels, got shape \[1, 0, 4, 3\]"):
        pictures_of(np.zeros((1, 0, 4, 3), np.uint8))


def test_quantize_refuses_nan() -> None:
    with pytest.raises(InvalidRequest, match="contains NaN, which cannot be quantized to UINT8"):
        quantize(f32([np.nan]), Quantize(scale=1, dtype="UINT8"))


def test_transposing_there_and_back() -> None:
    x = noise(2, 4, 5, 3)
    there = transpose(x, "NCHW")
    assert there.shape == (2, 3, 4, 5)
    assert there.flags.c_contiguous
    assert np.array_equal(transpose(there, "NHWC"), x)


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("channels", [1, 3])
def test_resizing_gives_the_size_asked_for_and_the_same_each_time(fit: str, channels: int) -> None:
    pictures = several((30, 40), (40, 30), (7, 200), (1, 1), (24, 16), channels=channels)
    op = Resize.model_validate({"to": [24, 16], "fit": fit})
    result = resize(pictures, op)
    assert result.array.shape == (5, 24, 16, channels)
    assert np.array_equal(result.array, resize(pictures, op).array)
    assert np.array_equal(result.array[4], pictures.rows[4])


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("kind", ["nearest", "bilinear", "bicubic"])
def test_a_plain_picture_stays_plain(fit: str, kind: str) -> None:
    plain = Pictures(np.full((1, 50, 20, 3), 77, np.uint8), Geometry.of([(20, 50)]), 10_000)
    assert (
        resize(plain, Resize.model_validate({"to": [31, 33], "fit": fit, "filter": kind, "fill": 77})).array == 77
    ).all()


def test_contain_pads_with_fill_on_both_sides() -> None:
    white = Pictures(np.full((1, 10, 20, 1), 255, np.uint8), Geometry.of([(20, 10)]), 10_000)
    result = resize(white, Resize(to=(20, 20), fit="contain", fill=9)).array[0, :, :, 0]
    assert (result[:5] == 9).all()
    assert (result[5:15] == 255).all()
    assert (result[15:] == 9).all()


def test_cover_keeps_the_middle() -> None:
    picture = np.zeros((1, 10, 30, 1), np.uint8)
    picture[:, :, 10:20] = 200
    result = resize(Pictures(picture, Geometry.of([(30, 10)]), 10_000), Resize(to=(10, 10), fit="cover"))
    assert (result.array == 200).all()


def test_crop_keeps_the_middle() -> None:
    picture = noise(1, 10, 12, 3)
    result = crop(pictures_of(picture), Crop(to=(4, 6)))
    assert np.array_equal(result.array, picture[:, 3:7, 3:9])


def test_a_picture_smaller_than_the_crop() -> None:
    with pytest.raises(InvalidRequest, match="a picture of 5 x 9 pixels is smaller than the crop, 6 x 4"):
        crop(several((9, 5)), Crop(to=(4, 6)))


def test_pictures_of_several_sizes_cannot_be_one_tensor() -> None:
    with pytest.raises(InvalidRequest, match="must have the same size, got 5 x 9, 6 x 9"):
        _ = several((9, 6), (9, 5)).array


def test_all_pictures_of_a_request_share_the_limit() -> None:
    pictures = np.stack([noise(10, 10, 3)] * 2)
    decoded = decode_pictures(pictures, "rgb", 100)
    with pytest.raises(InvalidRequest, match="2 pictures of 8 x 7 pixels exceed the limit of 100"):
        resize(decoded, Resize(to=(7, 8)))


def test_a_very_tall_picture_is_refused_before_it_takes_memory() -> None:
    """Pillow scales the width first, into a picture of the full height."""
    tall = Pictures([np.zeros((60_000, 1, 3), np.uint8)], Geometry.of([(1, 60_000)]), 1_000_000)
    with pytest.raises(InvalidRequest, match="1 x 60000 pixels is too tall to become 100 wide"):
        resize(tall, Resize(to=(10, 100)))


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("size", [(30, 40), (41, 17), (64, 64), (20, 58), (60, 22)])
@pytest.mark.parametrize("cut", [None, (40, 40)])
def test_a_box_comes_back_to_where_it_was(fit: str, size: tuple[int, int], cut: tuple[int, int] | None) -> None:
    """A bright rectangle drawn in the original is found in the model's picture and mapped back."""
    height, width = (one * 4 for one in size)
    box = (width * 5 // 12, height * 5 // 12, width * 8 // 12, height * 7 // 12)
    picture = np.zeros((height, width, 1), np.uint8)
    picture[box[1] : box[3], box[0] : box[2]] = 255
    pictures = Pictures([picture], Geometry.of([(width, height)]), 10_000_000)
    result = resize(pictures, Resize.model_validate({"to": [48, 64], "fit": fit}))
    if cut is not None:
        result = crop(result, Crop(to=cut))
    bright = np.argwhere(result.array[0, :, :, 0] >= 128)
    (top, left), (bottom, right) = bright.min(axis=0), bright.max(axis=0) + 1
    seen = np.array([[left, top, right, bottom]], np.float64)
    back = result.geometry.to_original(seen, 0, normalized=False)[0]
    inside = [left > 0, top > 0, right < result.array.shape[2], bottom < result.array.shape[1]]
    expected = np.array(box) / (width, height, width, height)
    per_pixel = np.tile(1 / (result.geometry.scale[0] * (width, height)), 2)  # fractions of the original
    assert sum(inside) >= 2
    assert (np.abs(back - expected)[inside] <= per_pixel[inside]).all()
    fractions = seen / np.tile(result.geometry.size[0], 2)
    np.testing.assert_allclose(result.geometry.to_original(fractions, 0, normalized=True)[0], back, atol=1e-12)

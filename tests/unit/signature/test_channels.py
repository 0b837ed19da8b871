"""Pixels in the order in which callers have them: what the model gets, and what goes up, is RGB."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from upwell.shared.config.yaml import parse_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.signature.model_yaml import ModelDescription
from upwell.shared.signature.picture_codec import decode
from upwell.shared.signature.processor import Processor
from upwell.shared.signature.uplink_pictures import encode_for_uplink
from upwell.shared.tensors import Array, TensorSpec

RGB = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), np.uint8)
TEXT = """
signature:
  inputs: {image: {kind: image%s}}
  outputs: {y: {kind: tensor}}
pre: [{decode: {from: image%s}}]
"""


def processor(keys: str, color: str = "", channels: int = 3) -> Processor:
    takes = TensorSpec("x", "UINT8", (-1, 4, 5, channels))
    description = parse_yaml(TEXT % (keys, color), ModelDescription)
    return Processor(description, [takes], [TensorSpec("y", "FP32", (-1, 2))], "onnx")


def taken(keys: str, pixels: Array, color: str = "", channels: int = 3) -> Array:
    """What the model gets."""
    return processor(keys, color, channels).pre({"image": pixels}).tensors["x"]


def png(pixels: Array) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def encoded(pixels: Array) -> Array:
    pictures = np.empty(len(pixels), np.object_)
    pictures[:] = [png(one) for one in pixels]
    return pictures


def test_pixels_are_rgb_unless_the_signature_says_bgr() -> None:
    for keys, given in (("", RGB), (", channels: rgb", RGB), (", channels: bgr", RGB[..., ::-1])):
        np.testing.assert_array_equal(taken(keys, given), RGB)


@pytest.mark.parametrize("keys", ["", ", channels: bgr"])
def test_an_encoded_picture_is_rgb_always(keys: str) -> None:
    np.testing.assert_array_equal(taken(keys, encoded(RGB)), RGB)


def test_gray_is_made_of_the_right_channels() -> None:
    expected = taken("", RGB, ", color: gray", 1)
    np.testing.assert_array_equal(taken(", channels: bgr", RGB[..., ::-1], ", color: gray", 1), expected)
    assert (taken("", RGB[..., ::-1], ", color: gray", 1) != expected).any()
    gray = RGB[..., :1]
    np.testing.assert_array_equal(taken(", channels: bgr", gray, ", color: gray", 1), gray)


@pytest.mark.parametrize("uplink", ["", ", uplink: {encode: png}"])
def test_what_goes_up_is_rgb_whether_it_is_encoded_or_not(uplink: str) -> None:
    bgr = np.ascontiguousarray(RGB[..., ::-1])
    before = bgr.copy()
    (sent,) = encode_for_uplink(processor(f", channels: bgr{uplink}").signature, {"image": bgr}).values()
    if uplink:
        sent = np.stack([decode(one, "rgb", 100) for one in sent])
    np.testing.assert_array_equal(sent, RGB)
    np.testing.assert_array_equal(bgr, before)  # the caller's own is not touched
    np.testing.assert_array_equal(taken("", sent), taken(", channels: bgr", bgr))  # both sides see the same


def test_encoded_pictures_go_up_as_they_are() -> None:
    pictures = encoded(RGB)
    assert encode_for_uplink(processor(", channels: bgr").signature, {"image": pictures})["image"] is pictures


def test_another_order_is_an_error() -> None:
    with pytest.raises(ConfigError, match="channels"):
        processor(", channels: grb")

"""Pictures decoded no larger than needed: how far that is from decoding them whole, and when it is not done."""

from __future__ import annotations

import io
from dataclasses import asdict
from typing import Any, Literal

import numpy as np
import pytest
from PIL import Image

from tests.photographs import photograph
from upwell.shared.errors import InvalidRequest
from upwell.shared.signature.model_yaml import Decode, Resize
from upwell.shared.signature.picture_codec import decode
from upwell.shared.signature.picture_transforms import decode_pictures, decode_resized, resize
from upwell.shared.signature.signature import LogicalInput, Signature, UplinkEncoding
from upwell.shared.signature.step_values import Pictures
from upwell.shared.signature.uplink_pictures import encode_for_uplink
from upwell.shared.tensors import Array, TensorSpec

MOST, MOST_ON_AVERAGE = 16, 0.7
"""Of 255: what docs/model-yaml.md says."""
PHOTO = Image.fromarray(photograph("china.jpg"))  # 640 x 427


def jpeg(size: tuple[int, int], **options: Any) -> bytes:
    file = io.BytesIO()
    PHOTO.resize(size, Image.Resampling.BICUBIC).save(file, "JPEG", quality=92, **options)
    return file.getvalue()


def array(*pictures: bytes) -> Array:
    made = np.empty(len(pictures), np.object_)
    made[:] = pictures
    return made


def both(data: Array, decode_op: Decode, op: Resize) -> tuple[Pictures, Pictures]:
    """As one pass, and as two."""
    return decode_resized(data, decode_op, op), resize(decode_pictures(data, decode_op.color, decode_op.max_pixels), op)


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return jpeg((1203, 801), exif=exif.tobytes())


@pytest.mark.parametrize("color", ["rgb", "gray"])
@pytest.mark.parametrize("fit", ["stretch", "cover", "contain"])
@pytest.mark.parametrize("size", [(1600, 1067), (1203, 801)])
def test_a_photograph_decoded_small_is_near_the_one_decoded_whole(
    size: tuple[int, int], fit: Literal["stretch", "cover", "contain"], color: Literal["rgb", "gray"]
) -> None:
    one, two = both(array(jpeg(size)), Decode(color=color), Resize(to=(96, 128), fit=fit))
    assert one.array.shape == two.array.shape
    differences = np.abs(one.array.astype(int) - two.array)
    assert 0 < differences.max() <= MOST  # it was not decoded whole
    assert differences.mean() <= MOST_ON_AVERAGE
    for ours, theirs in zip(asdict(one.geometry).values(), asdict(two.geometry).values(), strict=True):
        np.testing.assert_allclose(ours, theirs)


@pytest.mark.parametrize("orientation", [*range(10), 255, 65535])  # no more than 1 to 8 mean anything
def test_a_picture_that_lies_on_its_side_is_turned_first(orientation: int) -> None:
    one, two = both(array(turned(orientation)), Decode(), Resize(to=(96, 128)))
    assert np.abs(one.array.astype(int) - two.array).max() <= MOST
    assert one.geometry.original.tolist() == two.geometry.original.tolist()


@pytest.mark.parametrize(
    ("keys", "to"),
    [({"exact": True}, (96, 128)), ({}, (300, 400))],
)
def test_exact_pictures_and_those_shrunk_little_are_decoded_whole(keys: dict[str, Any], to: tuple[int, int]) -> None:
    one, two = both(array(jpeg((1203, 801))), Decode(**keys), Resize(to=to))
    assert np.array_equal(one.array, two.array)


def test_neither_the_nearest_pixel_nor_another_format_is_taken_from_a_smaller_picture() -> None:
    one, two = both(array(jpeg((1200, 800))), Decode(), Resize(to=(64, 96), filter="nearest"))
    assert np.array_equal(one.array, two.array)
    file = io.BytesIO()
    PHOTO.save(file, "PNG")
    one, two = both(array(file.getvalue()), Decode(), Resize(to=(64, 96)))
    assert np.array_equal(one.array, two.array)


def test_several_pictures_are_what_each_is_alone() -> None:
    data = array(jpeg((1600, 1067)), jpeg((900, 1200)), jpeg((64, 48)), turned(6))
    op = Resize(to=(96, 128), fit="contain")
    together = decode_resized(data, Decode(), op)
    alone = [decode_resized(data[row : row + 1], Decode(), op) for row in range(len(data))]
    assert np.array_equal(together.array, np.concatenate([one.array for one in alone]))
    np.testing.assert_array_equal(together.geometry.scale, np.concatenate([one.geometry.scale for one in alone]))


def test_a_bad_picture_among_several_is_named_by_its_row() -> None:
    good = jpeg((1200, 800))
    with pytest.raises(InvalidRequest, match="row 1: the picture is damaged"):
        decode_resized(array(good, good[: len(good) // 2], good), Decode(), Resize(to=(96, 128)))
    with pytest.raises(InvalidRequest, match="row 1: the picture has 1200 x 800 pixels; at most 540000"):
        decode_resized(array(good, good), Decode(max_pixels=1_500_000), Resize(to=(96, 128)))


# --- What goes up


def sent(data: bytes, uplink: UplinkEncoding) -> bytes:
    image = LogicalInput("image", "image", TensorSpec("image", "BYTES", (-1,)), uplink)
    found: bytes = encode_for_uplink(Signature((image,), (), has_rows=True), {"image": array(data)})["image"][0]
    return found


def test_a_larger_picture_goes_up_as_small_as_the_cloud_will_see_it() -> None:
    data = jpeg((1600, 1067))
    small = sent(data, UplinkEncoding(None, 85, max_side=320))
    assert len(small) < len(data) / 8
    assert small.startswith(b"\xff\xd8\xff")
    assert decode(small, "rgb", 10**6).shape == (213, 320, 3)
    webp = sent(data, UplinkEncoding("webp", 60, max_side=320))
    assert webp.startswith(b"RIFF")
    upright = sent(turned(6), UplinkEncoding(None, 85, max_side=320))
    assert decode(upright, "rgb", 10**6).shape == (320, 213, 3)


def test_what_would_not_get_smaller_or_cannot_be_read_goes_up_as_it_came() -> None:
    data = jpeg((320, 213))
    for uplink in (UplinkEncoding(None, 85, max_side=320), UplinkEncoding("png", recode=True)):
        assert sent(data, uplink) is data
    torn = data[: len(data) // 2]
    assert sent(torn, UplinkEncoding("webp", recode=True)) is torn
    assert len(sent(data, UplinkEncoding("webp", 40, recode=True))) < len(data) / 2


def test_gray_stays_gray_and_pixels_are_shrunk_too() -> None:
    file = io.BytesIO()
    PHOTO.convert("L").save(file, "PNG")
    small = sent(file.getvalue(), UplinkEncoding(None, max_side=64))
    assert Image.open(io.BytesIO(small)).mode == "L"
    image = LogicalInput("image", "image", TensorSpec("image", "BYTES", (-1,)), UplinkEncoding(None, max_side=64))
    pixels = np.asarray(PHOTO)[None]
    shrunk = encode_for_uplink(Signature((image,), (), has_rows=True), {"image": pixels})["image"]
    assert shrunk.shape == (1, 43, 64, 3)

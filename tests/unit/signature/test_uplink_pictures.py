"""Pictures on their way up: what the cloud's model sees of them stays by every rule, and what is expected of it."""

from __future__ import annotations

import io
import json
from typing import Any, Literal

import numpy as np
import pytest
from PIL import Image

from tests.photographs import photograph
from tests.unit.signature.test_processor import CLASSIFIER, processor
from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.http.body_converters import parse_config_parameters
from upwell.shared.oip.introspection import ModelConfig, Seen, config_document, read_seen, write_seen
from upwell.shared.signature.model_yaml import Decode, Resize
from upwell.shared.signature.picture_transforms import decode_resized
from upwell.shared.signature.signature import LogicalInput, LogicalOutput, OutputKind, Signature, UplinkEncoding
from upwell.shared.signature.uplink_pictures import encode_for_uplink, saved_bytes, shrink_for_uplink
from upwell.shared.tensors import Array, TensorSpec

PHOTO = Image.fromarray(photograph("china.jpg"))  # 640 x 427
SIZES = [(640, 427), (427, 640), (301, 200), (129, 640), (90, 60)]
Fit = Literal["stretch", "cover", "contain"]
Filter = Literal["nearest", "bilinear", "bicubic"]


def encoded(size: tuple[int, int], form: str = "PNG", **options: Any) -> Array:
    file = io.BytesIO()
    PHOTO.resize(size, Image.Resampling.BICUBIC).save(file, form, **options)
    made = np.empty(1, np.object_)
    made[0] = file.getvalue()
    return made


def signature(uplink: UplinkEncoding | None = None, output: OutputKind = "tensor") -> Signature:
    image = LogicalInput("image", "image", TensorSpec("image", "BYTES", (-1,)), uplink)
    return Signature((image,), (LogicalOutput("y", output, TensorSpec("y", "UINT8", (-1, 1))),), has_rows=True)


def shrunk(given: Array, seen: Resize, output: OutputKind = "tensor") -> Array:
    return shrink_for_uplink(signature(output=output), {"image": given}, {"image": seen})["image"]


def pixels(given: Array, seen: Resize) -> Array:
    found: Array = decode_resized(given, Decode(), seen).array
    return found.astype(int)


@pytest.mark.parametrize("filter", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("fit", ["stretch", "contain"])
@pytest.mark.parametrize("size", SIZES)
def test_the_cloud_sees_the_same_pixels_of_a_png(size: tuple[int, int], fit: Fit, filter: Filter) -> None:
    seen = Resize(to=(96, 128), fit=fit, filter=filter)
    given = encoded(size)
    small = shrunk(given, seen)
    assert len(small[0]) <= len(given[0])
    # A side that the cloud enlarges is resized by it alone, after the other one: rounded once more.
    bound = 1 if fit == "stretch" and min(size[0] / 128, size[1] / 96) < 1 and filter != "nearest" else 0
    assert np.abs(pixels(given, seen) - pixels(small, seen)).max() <= bound


@pytest.mark.parametrize("filter", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("size", [*SIZES, (302, 192)])
def test_what_it_cuts_off_stays_here(size: tuple[int, int], filter: Filter) -> None:
    seen, given = Resize(to=(96, 128), fit="cover", filter=filter), encoded(size)
    small = shrunk(given, seen, "probabilities")
    if min(size[0] / 128, size[1] / 96) > 1.5:
        assert Image.open(io.BytesIO(small[0])).size == (128, 96)
    assert np.array_equal(pixels(given, seen), pixels(small, seen))
    frames = np.asarray(PHOTO.resize(size))[None]
    assert np.array_equal(pixels(frames, seen), pixels(shrunk(frames, seen, "embedding"), seen))


@pytest.mark.parametrize("output", ["detections", "tensor"])
def test_nothing_is_cut_off_where_an_answer_may_name_places(output: OutputKind) -> None:
    given, seen = encoded((640, 427)), Resize(to=(96, 128), fit="cover")
    assert shrunk(given, seen, output) is given


@pytest.mark.parametrize("output", ["masks", "segments"])
def test_where_the_answer_has_the_size_of_the_picture_it_goes_up_whole(output: OutputKind) -> None:
    given, seen = encoded((640, 427)), Resize(to=(96, 128))
    assert shrunk(given, seen, output) is given
    assert saved_bytes(signature(output=output), {"image": given}, {"image": seen}) == ()


def test_what_is_smaller_or_no_picture_goes_up_as_it_came() -> None:
    given, seen = encoded((90, 60), "JPEG"), Resize(to=(96, 128))
    assert shrunk(given, seen)[0] is given[0]
    given[0] = b"no picture"
    assert shrunk(given, seen)[0] is given[0]
    assert saved_bytes(signature(), {"image": given}, {"image": seen}) == ()
    assert shrink_for_uplink(signature(), inputs := {"image": given}, {}) is inputs


@pytest.mark.parametrize("form", ["JPEG", "WEBP", "PNG"])
def test_what_goes_up_is_expected_within_a_factor_of_two(form: str) -> None:
    given, seen = encoded((640, 427), form), Resize(to=(96, 128))
    (saved,) = saved_bytes(signature(), {"image": given}, {"image": seen})
    true = len(shrunk(given, seen)[0])
    assert true / 2 < len(given[0]) - saved < 2 * true
    frames = np.zeros((2, 192, 256, 3), np.uint8)
    assert saved_bytes(signature(), {"image": frames}, {"image": seen}) == (3 * 96 * 128 * 3,) * 2


def test_a_side_of_its_own_comes_first_and_an_encoding_takes_the_size_of_the_cloud() -> None:
    given, resizes = encoded((640, 427), "JPEG"), {"image": Resize(to=(96, 128))}

    def size(uplink: UplinkEncoding) -> tuple[int, int]:
        sent = encode_for_uplink(signature(uplink), {"image": given}, resizes)
        assert shrink_for_uplink(signature(uplink), sent, resizes) is sent
        return Image.open(io.BytesIO(sent["image"][0])).size

    assert size(UplinkEncoding(None, max_side=320)) == (320, 214)
    assert size(UplinkEncoding("webp", quality=50, recode=True)) == (128, 96)


@pytest.mark.parametrize(
    ("pre", "resizes"),
    [
        ("[{decode: image}, {resize: {to: [4, 6], fit: cover}}, {normalize: }, {layout: NCHW}]", True),
        ("[{decode: {from: image, color: gray}}, {resize: {to: [4, 6]}}, {normalize: }, {layout: NCHW}]", True),
        ("[{decode: {from: image, exact: true}}, {resize: {to: [4, 6]}}, {normalize: }, {layout: NCHW}]", False),
        ("[{decode: image}, {crop: {to: [4, 6]}}, {normalize: }, {layout: NCHW}]", False),
    ],
)
def test_what_a_model_makes_of_a_picture_is_told_where_nothing_else_is_seen_of_it(pre: str, resizes: bool) -> None:
    channels = 1 if "gray" in pre else 3
    text = CLASSIFIER[: CLASSIFIER.index("pre:")] + f"pre: {pre}\npost: []\n"
    text = text.replace("scores: {kind: probabilities", "logits: {kind: logits")
    made = processor(text, [("input", "FP32", (-1, channels, 4, 6))], [("logits", "FP32", (-1, 3))])
    assert [*made.resizes] == (["image"] if resizes else [])
    told = read_seen(write_seen("sha256:1", made.resizes))
    assert told == (Seen("sha256:1", {"image": told.resizes["image"]}) if resizes else Seen())


def test_it_is_told_in_the_model_s_configuration_and_what_cannot_be_read_is_as_good_as_nothing() -> None:
    parameters = write_seen("sha256:1", {"image": Resize(to=(96, 128), fit="contain", fill=7)})
    config = ModelConfig("m", ("1",), "", "", (), (), parameters=parameters)
    assert parse_config_parameters(json.dumps(config_document(config)).encode()) == parameters
    assert read_seen(parameters).resizes["image"] == Resize(to=(96, 128), fit="contain")
    for text in ("", "[]", '{"to": [96, 128], "fit": "odd"}', '{"to": [0, 1]}', '{"to": [1, 1], "more": 1}'):
        assert read_seen({"upwell.resize.image": text}).resizes == {}
    assert parse_config_parameters(b"{}") == {}
    with pytest.raises(InvalidRequest):
        parse_config_parameters(b'{"parameters": {"a": 1}}')

"""Pictures in: every form that phones and cameras make, and every form made to do harm."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from upwell.shared.errors import InvalidRequest
from upwell.shared.signature.picture_codec import decode, encode, recolored
from upwell.shared.signature.signature import LogicalInput, Signature, UplinkEncoding
from upwell.shared.signature.uplink_pictures import encode_for_uplink
from upwell.shared.tensors import Array, TensorSpec

LIMIT = 1_000_000


def noise(height: int, width: int, channels: int = 3) -> Array:
    return np.random.default_rng(7).integers(0, 256, (height, width, channels), dtype=np.uint8)


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def png(width: int, height: int, *chunks: tuple[bytes, bytes], depth: int = 8, color: int = 0) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )


@pytest.mark.parametrize(("form", "options"), [("PNG", {}), ("WEBP", {"lossless": True})])
def test_lossless_pictures_come_out_as_they_went_in(form: str, options: dict[str, Any]) -> None:
    pixels = noise(5, 9)
    assert np.array_equal(decode(encoded(Image.fromarray(pixels), form, **options), "rgb", LIMIT), pixels)


def test_a_jpeg_comes_out_alike_and_the_same_each_time() -> None:
    ramp = np.tile(np.arange(64, dtype=np.uint8)[None, :, None] * 4, (48, 1, 3))
    data = encoded(Image.fromarray(ramp), "JPEG", quality=95)
    first = decode(data, "rgb", LIMIT)
    assert first.shape == (48, 64, 3)
    assert np.abs(first.astype(int) - ramp).max() < 8
    assert np.array_equal(first, decode(data, "rgb", LIMIT))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "PA"])
def test_every_png_mode_becomes_rgb_or_gray(mode: str) -> None:
    image = Image.fromarray(noise(6, 8)).convert("P" if mode == "PA" else mode)
    data = encoded(image.convert("RGBA") if mode == "PA" else image, "PNG")
    assert decode(data, "rgb", LIMIT).shape == (6, 8, 3)
    assert decode(data, "gray", LIMIT).shape == (6, 8, 1)


def test_alpha_is_dropped_and_not_blended() -> None:
    rgba = np.dstack((noise(4, 4), np.full((4, 4), 10, np.uint8)))
    assert np.array_equal(decode(encoded(Image.fromarray(rgba), "PNG"), "rgb", LIMIT), rgba[:, :, :3])


def test_cmyk_jpeg() -> None:
    white = Image.new("CMYK", (8, 8), (0, 0, 0, 0))
    assert decode(encoded(white, "JPEG"), "rgb", LIMIT).min() > 250


def test_16_bit_gray_keeps_its_high_byte() -> None:
    samples = np.array([[0, 255, 256, 0x7FFF], [0x8000, 0xFF00, 0xFFFF, 1]], dtype=np.uint16)
    data = encoded(Image.fromarray(samples), "PNG")
    assert np.array_equal(decode(data, "gray", LIMIT)[:, :, 0], samples >> 8)
    assert np.array_equal(decode(data, "rgb", LIMIT)[:, :, 2], samples >> 8)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(form: str, orientation: int) -> None:
    upright = np.zeros((16, 32, 3), np.uint8)
    upright[:8, :16] = (255, 0, 0)
    upright[:8, 16:] = (0, 255, 0)
    upright[8:, :16] = (0, 0, 255)
    turns = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = Image.fromarray(upright)
    if orientation in turns:
        stored = stored.transpose(turns[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    options: Any = {"JPEG": {"quality": 100, "subsampling": 0}, "PNG": {}, "WEBP": {"lossless": True}}
    pixels = decode(encoded(stored, form, exif=exif, **options[form]), "rgb", LIMIT)
    assert pixels.shape == (16, 32, 3)
    assert np.abs(pixels.astype(int) - upright).max() < 12


@pytest.mark.filterwarnings("ignore::UserWarning:PIL.TiffImagePlugin")
@pytest.mark.parametrize(
    "exif", [b"Exif\0\0XXXXXXXX", b"Exif\0\0II*\0\x08\0\0\0\xff\xff", b"Exif\0\0", b"Exif\0\0MM\0*\xff\xff\xff\xff"]
)
def test_a_broken_exif_block_does_not_break_the_picture(exif: bytes) -> None:
    data = encoded(Image.fromarray(noise(4, 6)), "PNG", exif=exif)
    assert decode(data, "rgb", LIMIT).shape == (4, 6, 3)


@pytest.mark.parametrize("form", ["PNG", "WEBP"])
def test_of_an_animation_the_first_frame_counts(form: str) -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "lime")]
    data = encoded(frames[0], form, save_all=True, append_images=frames[1:], lossless=True)
    assert decode(data, "rgb", LIMIT)[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("data", [b"", b"x", b"GIF89a" + bytes(50), b"BM" + bytes(50), b"\x89PNG", b"RIFF1234WAVE"])
def test_other_formats_are_named_as_such(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="expected a JPEG, PNG or WebP picture"):
        decode(data, "rgb", LIMIT)


@pytest.mark.parametrize("form", ["GIF", "BMP", "TIFF", "PPM"])
def test_formats_that_pillow_could_read_are_refused_too(form: str) -> None:
    with pytest.raises(InvalidRequest, match="expected a JPEG, PNG or WebP picture"):
        decode(encoded(Image.new("RGB", (4, 4)), form), "rgb", LIMIT)


def test_what_is_no_bytes_is_named_as_such() -> None:
    with pytest.raises(InvalidRequest, match="as bytes, got str"):
        decode("text", "rgb", LIMIT)  # type: ignore[arg-type]  # an element of a BYTES array may be anything


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_cut_off_anywhere(form: str) -> None:
    data = encoded(Image.fromarray(noise(40, 40)), form)
    for keep in [*range(64), len(data) // 2, len(data) * 3 // 4, len(data) - 60]:
        with pytest.raises(InvalidRequest):
            decode(data[:keep], "rgb", LIMIT)


def webp(kind: bytes, body: bytes) -> bytes:
    chunk = kind + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(chunk) + 4) + b"WEBP" + chunk


BOMBS = {
    "png": png(60_000, 60_000, (b"IDAT", zlib.compress(bytes(1000)))),
    "png side": png(2**31 - 1, 1, (b"IDAT", zlib.compress(bytes(10)))),
    "jpeg": b"\xff\xd8\xff\xc0\x00\x0b\x08\xff\xff\xff\xff\x01\x01\x11\x00\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00"
    + bytes(9),
    "webp canvas": webp(b"VP8X", bytes(4) + b"\xfe\x3f\x00\xfe\x3f\x00" + bytes(20)),
    "webp lossless": webp(b"VP8L", b"\x2f\xff\xff\xff\x0f" + bytes(20)),
    "webp lossy": webp(b"VP8 ", b"\x10\x00\x00\x9d\x01\x2a\xff\x3f\xff\x3f" + bytes(20)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_by_its_header(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"at most (1000000 are|65535 pixels a side are) decoded"):
        decode(BOMBS[name], "rgb", LIMIT)


def test_the_limit_is_the_decoders_own_and_exact() -> None:
    """Pillow would warn above 89 megapixels by itself."""
    data = encoded(Image.new("1", (10_000, 9_000)), "PNG")
    with pytest.raises(InvalidRequest, match="10000 x 9000 pixels; at most 89999999 are decoded"):
        decode(data, "gray", 89_999_999)
    assert decode(data, "gray", 90_000_000).shape == (9_000, 10_000, 1)


def test_a_compressed_text_bomb_beside_the_pixels() -> None:
    text = b"k\0\0" + zlib.compress(bytes(PngImagePlugin.MAX_TEXT_CHUNK + 100))
    data = png(2, 1, (b"zTXt", text), (b"IDAT", zlib.compress(b"\0\1\2")))
    with pytest.raises(InvalidRequest, match="damaged and cannot be decoded"):
        decode(data, "gray", LIMIT)


def test_more_pixels_compressed_than_the_header_says() -> None:
    data = png(2, 1, (b"IDAT", zlib.compress(bytes(50_000_000))))
    assert decode(data, "gray", LIMIT).shape == (1, 2, 1)


def test_a_jpeg_of_endless_scans() -> None:
    data = encoded(Image.fromarray(noise(8, 8)), "JPEG", progressive=True)
    scan = data[data.rindex(b"\xff\xda") : -2]
    with pytest.raises(InvalidRequest, match="more than 64 scans"):
        decode(data[:-2] + scan * 100 + data[-2:], "rgb", LIMIT)


@pytest.mark.parametrize("part", [b"\xff\xe1\x00\x02", b"\xff\xff\xff\xff", b"\xff\xed\x00\x10Photoshop 3.0\0"])
def test_a_jpeg_of_endless_segments(part: bytes) -> None:
    """Each costs the decoder some microseconds, and four bytes."""
    data = encoded(Image.fromarray(noise(8, 8)), "JPEG")
    assert decode(data[:2] + part * 200 + data[2:], "rgb", LIMIT).shape == (8, 8, 3)
    with pytest.raises(InvalidRequest, match="segments, which take too long"):
        decode(data[:2] + part * 1100 + data[2:], "rgb", LIMIT)


@pytest.mark.parametrize("hiding", [b"\xff\xd8", b"\xff\xd9", b"\xff\xf0"])
def test_a_marker_without_a_length_hides_no_segments(hiding: bytes) -> None:
    data = encoded(Image.fromarray(noise(8, 8)), "JPEG")
    with pytest.raises(InvalidRequest, match="segments, which take too long"):
        decode(data[:2] + hiding + b"\xff\xfe\x00\x02" * 1100 + data[2:], "rgb", LIMIT)


@pytest.mark.parametrize("kind", [b"abCd", b"IDAT"])
def test_a_png_of_endless_chunks(kind: bytes) -> None:
    pixels = (b"IDAT", zlib.compress(bytes(3)))
    assert decode(png(2, 1, *[(kind, b"")] * 900, pixels) + bytes(20_000), "gray", LIMIT).shape == (1, 2, 1)
    with pytest.raises(InvalidRequest, match="segments, which take too long"):
        decode(png(2, 1, *[(kind, b"")] * 1100, pixels), "gray", LIMIT)


def test_a_long_picture_may_have_as_many_more_segments() -> None:
    """Such as IDAT chunks of 8 KiB, as libpng writes them."""
    data = encoded(Image.fromarray(noise(8, 8)), "JPEG")
    comment = b"\xff\xfe\x08\x02" + bytes(2048)
    assert decode(data[:2] + comment * 1500 + data[2:], "rgb", LIMIT).shape == (8, 8, 3)


def test_what_follows_a_jpeg_or_lies_in_its_segments_is_no_scan() -> None:
    """Phones append a film to a photo, and put a thumbnail into it."""
    data = encoded(Image.fromarray(noise(8, 8)), "JPEG", comment=b"\xff\xda" * 100)
    assert decode(data + b"\xff\xda" * 100, "rgb", LIMIT).shape == (8, 8, 3)


def test_colors_of_pixels() -> None:
    gray = noise(3, 4, 1)
    assert np.array_equal(recolored(gray, "rgb"), np.dstack([gray] * 3))
    assert recolored(gray, "gray") is gray
    white = np.full((2, 2, 3), 255, np.uint8)
    assert recolored(white, "gray").tolist() == [[[255], [255]], [[255], [255]]]


def image_signature(uplink: UplinkEncoding | None) -> Signature:
    image = LogicalInput("image", "image", TensorSpec("image", "BYTES", (-1,)), uplink)
    tensor = LogicalInput("x", "tensor", TensorSpec("x", "UINT8", (-1, 2, 2, 3)))
    return Signature((image, tensor), (), has_rows=True)


@pytest.mark.parametrize("form", ["jpeg", "webp", "png"])
@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_go_up_encoded(form: Any, channels: int) -> None:
    ramp = np.tile(np.arange(32, dtype=np.uint8)[None, None, :, None] * 8, (2, 32, 1, channels))
    x = np.zeros((2, 2, 2, 3), np.uint8)
    sent = encode_for_uplink(image_signature(UplinkEncoding(form, 90)), {"image": ramp, "x": x})
    assert sent["x"] is x
    assert sent["image"].shape == (2,)
    back = np.stack([decode(data, "rgb" if channels == 3 else "gray", LIMIT) for data in sent["image"]])
    assert np.abs(back.astype(int) - ramp).max() <= (0 if form == "png" else 24)


def test_encoded_pictures_go_up_untouched() -> None:
    data = np.empty(1, np.object_)
    data[0] = encoded(Image.fromarray(noise(4, 4)), "PNG")
    given = {"image": data, "x": np.zeros((1, 2, 2, 3), np.uint8)}
    sent = encode_for_uplink(image_signature(UplinkEncoding("jpeg")), given)
    assert sent["image"][0] is data[0]


def test_pixels_stay_pixels_where_nothing_says_otherwise_or_they_do_not_fit() -> None:
    given = {"image": np.zeros((1, 4, 4, 3), np.uint8), "x": np.zeros((1, 2, 2, 3), np.uint8)}
    assert encode_for_uplink(image_signature(None), given)["image"] is given["image"]
    wide = {**given, "image": np.zeros((1, 1, 16_384, 3), np.uint8)}
    assert encode_for_uplink(image_signature(UplinkEncoding("webp")), wide)["image"] is wide["image"]
    assert encode(wide["image"][0], UplinkEncoding("jpeg")) is not None

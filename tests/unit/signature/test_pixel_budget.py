"""Pictures of many requests at once: together they have no more pixels than there is room for."""

from __future__ import annotations

import io
import threading
import time

import numpy as np
import pytest
from PIL import Image

from upwell.shared.config.yaml import parse_yaml
from upwell.shared.signature.model_yaml import ModelDescription
from upwell.shared.signature.picture_headers import encoded_pixels, header_pixels
from upwell.shared.signature.pixel_budget import AT_ONCE, BUDGET, PixelBudget
from upwell.shared.signature.processor import Processor
from upwell.shared.tensors import TensorSpec

LARGE = 1 << 20


def started(budget: PixelBudget, pixels: int, entered: threading.Event, leave: threading.Event) -> threading.Thread:
    def work() -> None:
        with budget.holding(pixels):
            entered.set()
            leave.wait(10.0)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_what_does_not_fit_waits_and_small_ones_never_do() -> None:
    budget = PixelBudget(3 * LARGE)
    events = [(threading.Event(), threading.Event()) for _ in range(3)]
    threads = [started(budget, 2 * LARGE, *events[0])]
    assert events[0][0].wait(10.0)
    threads.append(started(budget, 2 * LARGE, *events[1]))
    threads.append(started(budget, LARGE, *events[2]))
    assert events[2][0].wait(10.0)  # it fits beside the first, and passes the second
    for _ in range(100):
        with budget.holding(1000):
            pass
    assert not events[1][0].is_set()
    for _, leave in events:
        leave.set()
    assert events[1][0].wait(10.0)
    for thread in threads:
        thread.join()


def test_one_that_many_have_passed_is_passed_no_more() -> None:
    budget = PixelBudget(3 * LARGE)
    (held, let_go), (entered, leave), (late, end) = [(threading.Event(), threading.Event()) for _ in range(3)]
    threads = [started(budget, 2 * LARGE, held, let_go)]
    assert held.wait(10.0)
    threads.append(started(budget, 5 * LARGE, entered, leave))
    while not budget._passed:
        time.sleep(0.001)
    for _ in range(32):
        with budget.holding(LARGE):
            pass
    threads.append(started(budget, LARGE, late, end))
    while len(budget._passed) < 2:
        assert not late.is_set()
        time.sleep(0.001)
    let_go.set()
    assert entered.wait(10.0)
    assert not late.is_set()
    leave.set()
    assert late.wait(10.0)
    end.set()
    for thread in threads:
        thread.join()


def test_more_than_there_is_room_for_is_done_alone_and_an_error_gives_its_room_back() -> None:
    budget = PixelBudget(LARGE)
    for _ in range(3):
        with pytest.raises(KeyError), budget.holding(5 * LARGE):
            raise KeyError
    entered, leave = threading.Event(), threading.Event()
    with budget.holding(LARGE // 2):
        thread = started(budget, 5 * LARGE, entered, leave)
        assert not entered.wait(0.05)
    assert entered.wait(10.0)
    leave.set()
    thread.join()


def test_small_pictures_that_a_step_makes_large_wait_for_room_too() -> None:
    """Seventy bytes of PNG become megabytes in front of the model."""
    text = "signature: {inputs: {image: {kind: image}}, outputs: {y: {kind: logits}}}\n"
    description = parse_yaml(f"{text}pre: [{{decode: image}}, {{resize: {{to: [1024, 1024]}}}}]\n", ModelDescription)
    tensors = [TensorSpec("x", "UINT8", (-1, 1024, 1024, 3))], [TensorSpec("y", "FP32", (-1, 2))]
    processor, file = Processor(description, *tensors, "onnx"), io.BytesIO()
    Image.new("RGB", (1, 1)).save(file, "PNG")
    done = threading.Event()

    def work() -> None:
        processor.pre({"image": np.array([file.getvalue()], np.object_)})
        done.set()

    thread = threading.Thread(target=work)
    with BUDGET.holding(AT_ONCE):
        thread.start()
        assert not done.wait(0.2)
    thread.join(10.0)
    assert done.is_set()


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True, "comment": b"c" * 60_000}),
        ("PNG", {}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"exif": b"Exif\0\0"}),
    ],
)
def test_the_size_that_a_picture_says_it_has(form: str, options: dict[str, object]) -> None:
    file = io.BytesIO()
    Image.new("RGB", (70, 30)).save(file, form, **options)
    assert header_pixels(file.getvalue()) == 2100


@pytest.mark.parametrize("between", [b"\xff", b"\xff\xfe\0\2any bytes", b"\xff\xd8", b"\xff\xf0"])
def test_what_lies_between_segments_hides_no_size(between: bytes) -> None:
    """Decoders pass over it, and a size of 0 would wait for no room."""
    file = io.BytesIO()
    Image.new("RGB", (70, 30)).save(file, "JPEG", comment=b"\xff\xc0\0\x0b\x08\0\1\0\1")
    data = file.getvalue()
    assert header_pixels(data[:2] + between + data[2:]) == 2100


ENDLESS = b"\xff\xd8\xff\xd9\0\2" + b"\xff\xd9\0\2" * 9000


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xd8\xff", b"\xff\xd8\xff\xc0", b"\x89PNG\r\n\x1a\n", b"RIFF", b"GIF89a", ENDLESS]
)
def test_what_says_nothing_counts_as_nothing(data: bytes) -> None:
    assert header_pixels(data) == 0


def test_only_pictures_count() -> None:
    file = io.BytesIO()
    Image.new("RGB", (10, 10)).save(file, "PNG")
    pictures = np.empty(3, dtype=np.object_)
    pictures[:] = [file.getvalue(), b"text", file.getvalue()]
    assert encoded_pixels([np.zeros((4, 4), np.uint8), pictures]) == 200

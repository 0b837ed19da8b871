"""What the preview says of a pipeline, and which picture it shows."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.unit.pipelines.preview.drawn_frames import FakePipeline, answered, person, picture
from upwell.pipelines.frame import FoundObject
from upwell.pipelines.frame_outcome import percentile
from upwell.pipelines.preview import preview as module
from upwell.pipelines.preview.preview import MAX_OBJECTS, MAX_SIDE, MAX_TEXT, check_preview_address
from upwell.pipelines.sources.base import SourceState
from upwell.shared.errors import ConfigError
from upwell.shared.tensors import Array

BOX = (0.25, 0.25, 0.5, 0.75)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The instant that the preview sees; set its only entry."""
    now = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def pixels_of(jpeg: bytes | None) -> Any:
    assert jpeg is not None
    return np.asarray(Image.open(io.BytesIO(jpeg)))


def test_the_document_says_what_there_is_to_see_and_how_the_pipeline_does(clock: list[float]) -> None:
    pipeline = FakePipeline()
    pipeline.preview.note(answered(7, [person(BOX, 3)], captured_s=clock[0]))
    clock[0] += 0.5
    document = pipeline.preview.document()
    assert document.pop("zones") == {"door": [[0.05, 0.1], [0.4, 0.1], [0.4, 0.9], [0.05, 0.9]]}
    assert document == {
        "pipeline": "dock",
        "at_s": 1000.5,
        "frame": {
            "number": 7, "captured_unix_s": 1_700_000_007.0, "age_s": 0.5, "latency_ms": 41.0,
            "width": 320, "height": 240, "route": "edge", "reason": "confident", "degraded": False, "answers": {},
        },
        "objects": [
            {
                "label": "person", "score": 0.912, "box": list(BOX), "track": 3, "zones": ["door"],
                "answers": {"helmet": {"label": "none", "score": 0.881, "route": "cloud", "reason": "low_confidence"}},
            }
        ],
        "objects_left_out": 0,
        "lines": {"gate": [[0.0, 0.75], [1.0, 0.75]]},
        "captured": 100,
        "answered": 90,
        "dropped": {"unchanged": 7, "late": 3, "superseded": 0},
        "events": {"no-helmet": 2},
        "latency_ms": {"count": 100, "p50": 50.0, "p99": 99.0},
        "source": {
            "state": "live", "explained": "", "decoder": "h264", "width": 320, "height": 240, "reconnects": 0,
        },
        "last_failure": "late: the time was up",
    }  # fmt: skip


def test_before_the_first_frame_there_is_no_picture_and_the_source_says_why() -> None:
    pipeline = FakePipeline()
    pipeline.source(state=SourceState.LOST, explained="connection refused")
    pipeline.status = replace(pipeline.status, latencies_s=())
    document = pipeline.preview.document()
    assert (document["frame"], document["objects"], pipeline.preview.picture()) == (None, [], None)
    assert (document["source"]["state"], document["source"]["explained"]) == ("lost", "connection refused")
    assert document["latency_ms"] == {"count": 0, "p50": None, "p99": None}


def test_the_picture_has_the_pixels_that_may_leave_and_never_those_of_the_frame() -> None:
    pipeline = FakePipeline()
    blurred = np.full((240, 320, 3), 128, np.uint8)
    pipeline.preview.note(answered(1, [person(BOX, 1)], blurred))
    seen = pixels_of(pipeline.preview.picture())
    assert seen.shape == (240, 320, 3)
    assert np.abs(seen.astype(int) - 128).max() <= 2


def test_a_large_picture_is_shown_smaller_in_its_own_shape() -> None:
    pipeline = FakePipeline()
    pipeline.preview.note(answered(1, pixels=np.zeros((1080, 1920, 3), np.uint8)))
    assert pixels_of(pipeline.preview.picture()).shape == (720, MAX_SIDE, 3)
    frame = pipeline.preview.document()["frame"]
    assert (frame["width"], frame["height"]) == (1920, 1080)


def test_viewers_share_a_picture_and_a_newer_frame_waits_for_its_turn(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[Array] = []
    encode = module._jpeg

    def counted(pixels: Array) -> bytes:
        encoded.append(pixels)
        return encode(pixels)

    monkeypatch.setattr(module, "_jpeg", counted)
    preview = FakePipeline().preview
    for number in range(50):  # one frame every 20 ms, each looked at by three
        preview.note(answered(number))
        for _ in range(3):
            assert preview.picture() is not None
        clock[0] += 0.02
    assert len(encoded) == 5


def test_the_picture_that_a_document_names_is_there_until_the_second_one_after_it(clock: list[float]) -> None:
    preview = FakePipeline().preview
    for number in (1, 2, 3):
        preview.note(answered(number, pixels=picture([], (80 * number, 0, 0))))
        assert preview.document()["frame"]["number"] == number
        clock[0] += module.SHOWN_EVERY_S
    assert preview.picture(1) is None
    for number in (2, 3):
        assert abs(int(pixels_of(preview.picture(number))[0, 0, 0]) - 80 * number) < 4


def test_a_number_that_came_before_means_the_newer_frame(clock: list[float]) -> None:
    """Numbers begin again where a source is opened again."""
    preview = FakePipeline().preview
    for red in (40, 200):
        preview.note(answered(1, pixels=picture([], (red, 0, 0))))
        preview.document()
        clock[0] += module.SHOWN_EVERY_S
    assert abs(int(pixels_of(preview.picture(1))[0, 0, 0]) - 200) < 4


def test_what_models_say_cannot_make_the_document_wrong_or_endless() -> None:
    deep: dict[str, Any] = {}
    inner = deep
    for _ in range(100):
        inner["x"] = inner = {}
    facts = {"score": math.nan, "values": [math.inf, np.float32(0.5), np.int64(3)], "long": "y" * 9999, "deep": deep}
    many = [FoundObject("</script>\ud800" * 100, math.inf, BOX, answers={"m": facts})] * 500
    preview = FakePipeline().preview
    preview.note(answered(1, many))
    text = json.dumps(preview.document(), allow_nan=False)
    document = json.loads(text)
    found = document["objects"][0]
    assert (len(document["objects"]), document["objects_left_out"]) == (MAX_OBJECTS, 500 - MAX_OBJECTS)
    assert (found["score"], found["answers"]["m"]["score"]) == (None, None)
    assert found["answers"]["m"]["values"] == [None, 0.5, 3]
    assert len(found["label"]) == len(found["answers"]["m"]["long"]) == MAX_TEXT + 1
    assert len(text) < 200_000


@pytest.mark.parametrize(
    ("numbers", "share", "expected"),
    [([], 0.5, None), ([4.0], 0.99, 4.0), ([1.0, 2.0], 0.5, 1.0), ([1.0, 2.0, 3.0], 0.5, 2.0), ([1.0, 2.0], 0.99, 2.0)],
)
def test_a_percentile_is_a_number_that_there_was(numbers: list[float], share: float, expected: float | None) -> None:
    assert percentile(numbers, share) == expected


@pytest.mark.parametrize("address", ["127.0.0.1:9464", "localhost:0", "[::1]:9464"])
def test_the_preview_may_be_seen_from_this_machine(address: str) -> None:
    check_preview_address(address, "pipelines.dock.preview")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("0.0.0.0:9464", "0.0.0.0:9464 can be reached from outside this machine"),
        ("[::]:9464", "leave `preview` out"),
        ("192.0.2.7:9464", "anyone could see the pictures"),
        (None, "set `agent.metrics` to an address"),
    ],
)
def test_the_preview_is_refused_where_others_could_see_it(address: str | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        check_preview_address(address, "pipelines.dock.preview")
    assert "pipelines.dock.preview" in str(raised.value)

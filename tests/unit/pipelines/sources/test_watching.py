"""The fates of frames between decoder and reader, and the watchdog, in virtual time and without a process."""

from __future__ import annotations

from typing import Any, cast

import pytest
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from hypothesis import given
from hypothesis import strategies as st

from upwell.pipelines.sources import decoder_child
from upwell.pipelines.sources.decoder_child import Handover
from upwell.pipelines.sources.decoder_process import DecoderProcess
from upwell.pipelines.sources.frame_slot import WHOLE, FrameSlot, SlotCounts, Wanted
from upwell.pipelines.sources.source_settings import Patience
from upwell.pipelines.sources.video import Arrival, Connection

PATIENCE = Patience(silent_s=10, open_s=5)


@given(st.lists(st.sampled_from(["offer", "want", "undecodable"]), max_size=60))
def test_each_frame_is_given_replaced_or_waits_whatever_comes_first(doings: list[str]) -> None:
    said: list[dict[str, Any]] = []
    slot = FrameSlot.create()
    picture = VideoFrame(16, 16, "yuv420p")
    handover = Handover(slot, said.append, keeps_all=False)
    offered, wants, numbers = 0, 0, []
    for doing in doings:
        if doing == "offer":
            offered += 1
            numbers.append(slot.counts.decoded + slot.counts.undecodable + 1)
            handover.offer(picture, float(offered))
        elif doing == "undecodable":
            slot.count_undecodable()
        elif len(said) == wants:  # the reader asks again only when it has been answered
            wants += 1
            handover.want(WHOLE)
        counts = slot.counts
        waiting = counts.decoded - counts.superseded - len(said)
        assert counts.decoded == offered
        assert waiting in (0, 1)
        assert wants - len(said) in (0, 1)
        assert waiting + (wants - len(said)) <= 1
    given_numbers = [message["frame"] for message in said]
    assert given_numbers == sorted(set(given_numbers))
    assert set(given_numbers) <= set(numbers)
    slot.close()


def test_a_frame_that_waits_is_the_newest() -> None:
    said: list[dict[str, Any]] = []
    slot = FrameSlot.create()
    handover = Handover(slot, said.append, keeps_all=False)
    for captured_s in range(5):
        handover.offer(VideoFrame(16, 16, "yuv420p"), float(captured_s))
    handover.want(WHOLE)
    assert [(message["frame"], message["captured_s"]) for message in said] == [(5, 4.0)]
    assert slot.counts.superseded == 4
    slot.close()


@pytest.mark.parametrize("kind", ["yuv420p", "yuvj422p", "nv12", "gray", "rgb24", "yuyv422", "yuv420p10le"])
@pytest.mark.parametrize("width", [64, 50])
def test_a_frame_of_any_format_is_written_as_rgb_and_luma(kind: str, width: int) -> None:
    gray = VideoFrame(width, 30, "gray")
    gray.planes[0].update(bytes([126]) * (gray.planes[0].line_size * 30))
    frame = gray.reformat(format=kind)
    slot = FrameSlot.create()
    assert decoder_child.write_picture(frame, slot, WHOLE, VideoReformatter()) == (width, 30)
    picture = bytes(slot.picture(width, 30))
    slot.close()
    assert len(picture) == 4 * width * 30
    assert max(abs(value - 126) for value in picture) <= 8  # the luma may be of the range from 16 to 235


class Decoder:
    """A decoder that has done what the test says."""

    def __init__(self) -> None:
        self.counts = SlotCounts()
        self.asked = 0

    def ask(self, wanted: Wanted) -> None:
        self.asked += 1


def connected(decoder: Decoder, opening_s: float = 100.0) -> Connection:
    """A connection that began to connect at that instant."""
    return Connection(cast(DecoderProcess, decoder), 1, 99.0, opening_s)


def test_a_connection_that_brings_nothing_is_given_up() -> None:
    decoder = Decoder()
    clock = connected(decoder, 0.0)
    assert clock.silence(PATIENCE, 120.0, may_block=False) == ""
    assert clock.silence(PATIENCE, 130.0, may_block=False) == "the decoder does not start"
    connection = connected(decoder)
    assert connection.silence(PATIENCE, 105.0, may_block=False) == ""
    assert connection.silence(PATIENCE, 105.1, may_block=False) == "no frame within 5 s"


@pytest.mark.parametrize(("decoded", "why"), [(30, "no frame for 10 s"), (400, "the same picture for 10 s")])
def test_only_frames_that_change_are_signs_of_life(decoded: int, why: str) -> None:
    decoder = Decoder()
    connection = connected(decoder)
    decoder.counts = SlotCounts(decoded=30, changed_s=110.0)
    assert connection.silence(PATIENCE, 110.0, may_block=False) == ""
    decoder.counts = SlotCounts(decoded=decoded, changed_s=110.0)
    assert connection.silence(PATIENCE, 120.0, may_block=False) == ""
    assert connection.silence(PATIENCE, 120.1, may_block=False) == why


def test_the_time_that_the_reader_takes_is_no_silence() -> None:
    decoder = Decoder()
    connection = connected(decoder)
    decoder.counts = SlotCounts(decoded=2, changed_s=101.0)
    connection.ask(100.0, WHOLE)
    connection.arrived(Arrival(1, 101.0, 0.0, (4, 4), (4, 4)), 101.0)
    assert connection.silence(PATIENCE, 101.0, may_block=True) == ""
    assert connection.silence(PATIENCE, 500.0, may_block=True) == ""  # the reader has not taken it yet
    connection.arrival = None
    connection.ask(501.0, WHOLE)
    assert connection.silence(PATIENCE, 510.0, may_block=True) == ""
    assert connection.silence(PATIENCE, 511.1, may_block=True) == "no frame for 10 s"
    assert decoder.asked == 2


def test_a_picture_that_lies_there_is_replaced_where_a_newer_one_waits() -> None:
    decoder = Decoder()
    connection = connected(decoder)
    connection.ask(100.0, WHOLE)
    connection.ask(100.1, WHOLE)
    assert decoder.asked == 1
    decoder.counts = SlotCounts(decoded=1, undecodable=3, changed_s=101.0)
    connection.arrived(Arrival(1, 101.0, 0.0, (4, 4), (4, 4)), 101.0)
    connection.replace_stale()
    assert (connection.arrival is None, connection.superseded) == (False, 0)
    decoder.counts = SlotCounts(decoded=2, undecodable=3, changed_s=101.1)
    connection.replace_stale()
    assert (connection.arrival is None, connection.superseded) == (True, 1)

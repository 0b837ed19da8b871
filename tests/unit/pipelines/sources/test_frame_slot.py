"""The shared memory, seen from both sides."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from upwell.pipelines.sources.frame_slot import FrameSlot, SlotCounts, SlotUnusable


@pytest.fixture
def sides() -> Iterator[tuple[FrameSlot, FrameSlot]]:
    """The reader's side and the decoder's, each with a descriptor of its own."""
    reader = FrameSlot.create()
    decoder = FrameSlot(os.dup(reader.descriptor))
    yield reader, decoder
    decoder.close()
    reader.close()


def test_what_one_side_writes_the_other_reads_through_every_change_of_size(sides: tuple[FrameSlot, FrameSlot]) -> None:
    reader, decoder = sides
    for value, (width, height) in enumerate([(4, 3), (640, 480), (2, 2), (800, 600)]):
        decoder.grow(width, height)
        decoder.picture(width, height)[:] = bytes([value]) * (4 * width * height)
        assert bytes(reader.picture(width, height)) == bytes([value]) * (4 * width * height)


def test_a_size_that_has_no_room_is_refused(sides: tuple[FrameSlot, FrameSlot]) -> None:
    reader, decoder = sides
    with pytest.raises(SlotUnusable, match="1 x 1"):
        reader.picture(1, 1)
    decoder.grow(10, 10)
    with pytest.raises(SlotUnusable, match="11 x 10 pixels does not fit the slot"):
        reader.picture(11, 10)


@pytest.mark.skipif(sys.platform != "linux", reason="seals are Linux's")
def test_the_decoder_cannot_take_the_memory_away_under_the_reader(sides: tuple[FrameSlot, FrameSlot]) -> None:
    _, decoder = sides
    decoder.grow(100, 100)
    with pytest.raises(PermissionError):
        os.truncate(decoder.descriptor, 0)


def test_counts_are_seen_on_the_other_side_and_after_the_end(sides: tuple[FrameSlot, FrameSlot]) -> None:
    reader, decoder = sides
    assert reader.counts == SlotCounts()
    assert [decoder.count_decoded(), decoder.count_decoded(supersedes=True)] == [1, 2]
    decoder.count_undecodable()
    assert decoder.count_decoded() == 4
    decoder.set_changed(1.5)
    assert reader.counts == SlotCounts(decoded=3, superseded=1, undecodable=1, changed_s=1.5)
    reader.close()
    reader.close()
    assert reader.counts == SlotCounts(decoded=3, superseded=1, undecodable=1, changed_s=1.5)

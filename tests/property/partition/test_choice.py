"""What holds of a choice whatever the cuts and the link are."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from upwell.shared.partition.choice import ReadyCut, choose

SECONDS = st.floats(0, 10)
BYTES = st.integers(0, 10_000_000)
PACES = st.one_of(st.floats(0, 1e-3), st.sampled_from((math.inf, math.nan)))
CUTS = st.lists(st.builds(ReadyCut, st.just(""), SECONDS, SECONDS, BYTES, BYTES), min_size=1, max_size=6).map(
    lambda cuts: [ReadyCut(f"c{i}", c.edge_s, c.cloud_s, c.bytes_up, c.bytes_down) for i, c in enumerate(cuts)]
)
NAMES = st.one_of(st.none(), st.sampled_from([f"c{index}" for index in range(8)]))


@given(cuts=CUTS, up=PACES, down=PACES, fixed_s=SECONDS, current=NAMES, margin=st.floats(0, 0.9))
def test_no_more_than_the_margin_is_given_away(
    cuts: list[ReadyCut], up: float, down: float, fixed_s: float, current: str | None, margin: float
) -> None:
    choice = choose(cuts, up, down, fixed_s, current, margin=margin)
    totals = {cut.name: cut.total_s(up, down, fixed_s) for cut in cuts}
    assert choice.best_s == min(totals.values())
    assert choice.total_s == totals[choice.cut.name]
    assert not math.isnan(choice.total_s)
    assert choice.best_s >= (1 - margin) * choice.total_s
    if choice.cut.name != current:
        assert choice.cut is choice.best
        if current in totals:
            assert choice.best_s < (1 - margin) * totals[current]


@given(cuts=CUTS, up=PACES, down=PACES, fixed_s=SECONDS, current=NAMES, within_s=SECONDS)
def test_what_is_in_time_is_preferred_to_what_stays(
    cuts: list[ReadyCut], up: float, down: float, fixed_s: float, current: str | None, within_s: float
) -> None:
    choice = choose(cuts, up, down, fixed_s, current, within_s=within_s)
    assert choice.total_s <= within_s or choice.best_s > within_s


@given(cuts=CUTS, up=PACES, down=PACES, fixed_s=SECONDS, current=NAMES)
def test_chosen_again_on_the_same_link_nothing_changes(
    cuts: list[ReadyCut], up: float, down: float, fixed_s: float, current: str | None
) -> None:
    first = choose(cuts, up, down, fixed_s, current).cut
    assert choose(cuts, up, down, fixed_s, first.name).cut is first

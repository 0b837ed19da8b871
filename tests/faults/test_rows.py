"""Requests of several rows: only those that must go up do, and the answer is put together again, whatever fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.clouds import Behaviour, ScriptedCloud, good, status
from tests.faults.oracles import cloud_scores, edge_scores, margins, pictures
from tests.faults.scene import DEADLINE_S, IN_TIME_S, Scene, Seen, scene
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.tensors import Array

BELOW = 0.9
DEFAULTS = {"deadline": f"{DEADLINE_S}s", "hard": {"measure": "margin", "below": BELOW}}
LARGE_BYTES = 128

SIZES = [len(one) + 4 for one in pictures(range(300))]
HARD = [index for index, margin in enumerate(margins(edge_scores(pictures(range(300))))) if margin < BELOW - 1e-4]
EASY = [index for index in range(300) if index not in HARD]
UNAVAILABLE = status(grpc.StatusCode.UNAVAILABLE)


@pytest.fixture(scope="module")
def hard_rows(tmp_path_factory: pytest.TempPathFactory, _one_cloud: ScriptedCloud) -> Iterator[Scene]:
    """One agent for the whole module whose hard digits go up."""
    with scene(tmp_path_factory.mktemp("hard"), {"defaults": DEFAULTS}, _one_cloud) as it:
        yield it


@pytest.fixture
def large_and_hard(tmp_path: Path, cloud: ScriptedCloud) -> Iterator[Scene]:
    """Here large digits go up at once, and of the others those that turn out hard."""
    with scene(tmp_path, {"defaults": {**DEFAULTS, "large": {"above": f"{LARGE_BYTES}B"}}}, cloud) as it:
        yield it


def assert_rows(seen: Seen, indexes: Sequence[int], lifted: Sequence[int]) -> None:
    """Rows in `lifted` (by digit) are the cloud's, the others the device's, each in its place."""
    images = pictures(indexes)
    up = np.array([index in lifted for index in indexes])
    expected: Array = np.where(up[:, None], cloud_scores(images), edge_scores(images))
    np.testing.assert_allclose(seen.scores, expected, atol=1e-5)
    assert seen.routes == tuple("cloud" if one else "edge" for one in up)
    assert seen.route == (seen.routes[0] if len(set(seen.routes)) == 1 else "mixed")
    assert seen.took_s <= IN_TIME_S


def sent(cloud: ScriptedCloud) -> list[list[bytes]]:
    """The pictures of each request that reached the cloud."""
    return [list(request.inputs["image"]) for request in cloud.requests]


def mixed(hard: int, easy: int) -> list[int]:
    """Digits that alternate between hard and easy as long as there are both."""
    pairs = [index for pair in zip(HARD[:hard], EASY[:easy], strict=False) for index in pair]
    return pairs + HARD[min(hard, easy) : hard] + EASY[min(hard, easy) : easy]


@pytest.mark.parametrize("way", ["in process", "over OIP"])
def test_only_hard_rows_go_up(hard_rows: Scene, cloud: ScriptedCloud, way: str) -> None:
    indexes = mixed(3, 4)
    seen = hard_rows.asks[way](pictures(indexes))
    assert_rows(seen, indexes, HARD)
    assert (seen.route, seen.reason, seen.degraded, seen.plan) == ("mixed", "hard", False, "cascade")
    assert sent(cloud) == [list(pictures(HARD[:3]))]


def test_easy_rows_stay(hard_rows: Scene, cloud: ScriptedCloud) -> None:
    seen = hard_rows.ask(pictures(EASY[:5]))
    assert_rows(seen, EASY[:5], [])
    assert (seen.reason, seen.degraded) == ("easy", False)
    assert cloud.requests == []


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([*HARD[:20], *EASY[:20]]), min_size=1, max_size=12))
def test_any_order_is_put_together_rightly(hard_rows: Scene, indexes: list[int]) -> None:
    assert_rows(hard_rows.ask(pictures(indexes)), indexes, HARD)


@pytest.mark.parametrize("way", ["in process", "over OIP"])
def test_the_device_answers_every_row_where_the_cloud_fails(hard_rows: Scene, cloud: ScriptedCloud, way: str) -> None:
    cloud.behaviour = UNAVAILABLE
    indexes = mixed(2, 2)
    seen = hard_rows.asks[way](pictures(indexes))
    assert_rows(seen, indexes, [])
    assert (seen.route, seen.reason, seen.degraded) == ("edge", "cloud_unavailable", True)
    cloud.behaviour = good
    assert_rows(hard_rows.asks[way](pictures(indexes)), indexes, HARD)


def chosen() -> tuple[list[int], list[int], list[int]]:
    """Two digits each that are large, small and hard, small and easy."""
    large = [index for index in range(300) if SIZES[index] > LARGE_BYTES]
    small = [index for index in range(300) if index not in large]
    return large[:2], [i for i in small if i in HARD][:2], [i for i in small if i in EASY][:2]


def interleaved(*groups: Sequence[int]) -> list[int]:
    return [index for row in zip(*groups, strict=True) for index in row]


def test_large_rows_go_up_before_and_hard_ones_after_the_device_ran(
    large_and_hard: Scene, cloud: ScriptedCloud
) -> None:
    large, hard, easy = chosen()
    indexes = interleaved(easy, large, hard)
    seen = large_and_hard.ask(pictures(indexes))
    assert_rows(seen, indexes, [*large, *hard])
    assert (seen.route, seen.reason, seen.degraded) == ("mixed", "large", False)
    assert sorted(sent(cloud)) == sorted([list(pictures(large)), list(pictures(hard))])


def fails_for(rows: Sequence[int]) -> Behaviour:
    """Fail requests that hold any of these digits."""
    unwanted = set(pictures(rows))

    def answer(request: InferRequest, context: grpc.ServicerContext) -> bytes:
        behaviour = UNAVAILABLE if unwanted.intersection(request.inputs["image"]) else good
        return behaviour(request, context)

    return answer


@pytest.mark.parametrize("which", [0, 1], ids=["large", "hard"])
def test_one_half_that_fails_does_not_spoil_the_other(large_and_hard: Scene, cloud: ScriptedCloud, which: int) -> None:
    large, hard, easy = chosen()
    indexes = interleaved(hard, easy, large)
    cloud.behaviour = fails_for([large, hard][which])
    seen = large_and_hard.ask(pictures(indexes))
    assert_rows(seen, indexes, [hard, large][which])
    assert (seen.route, seen.reason, seen.degraded) == ("mixed", "cloud_unavailable", True)


def test_a_request_of_large_rows_alone_needs_no_device(large_and_hard: Scene, cloud: ScriptedCloud) -> None:
    large, _, _ = chosen()
    seen = large_and_hard.ask(pictures(large))
    assert_rows(seen, large, large)
    assert seen.plan == "cloud"


def test_a_cloud_that_mixes_rows_up_is_garbage(hard_rows: Scene, cloud: ScriptedCloud) -> None:
    def short(request: InferRequest, context: grpc.ServicerContext) -> bytes:
        first: Any = {"image": request.inputs["image"][:1]}
        return good(InferRequest(request.model, first, id=request.id), context)

    cloud.behaviour = short
    indexes = mixed(2, 1)
    seen = hard_rows.ask(pictures(indexes))
    assert_rows(seen, indexes, [])
    assert (seen.reason, seen.degraded) == ("cloud_garbage", True)

"""Two profiles become one cost graph, or are refused with what does not fit."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.unit.partition.profiles_for_tests import LINK, profile, random_profiles
from upwell.shared.errors import ConfigError
from upwell.shared.partition.cost_graph import total_s
from upwell.shared.partition.tier_profile import Profile, combine, load_profile, measured_cuts

SIZES = [600_000, 40_000, 20_000, 4_000]
EDGE = profile("edge", {0: 0.0, 1: 0.010, 3: 0.070}, SIZES, work=[1, 1, 2])
CLOUD = profile("cloud", {0: 0.010, 2: 0.004, 3: 0.0}, SIZES, work=[1, 1, 2])


def test_time_between_two_measured_cuts_is_shared_out_by_work() -> None:
    graph = combine(EDGE, CLOUD, LINK)
    assert [node.cost_s["edge"] for node in graph.nodes] == pytest.approx([0.010, 0.020, 0.040])
    assert [node.cost_s["cloud"] for node in graph.nodes] == pytest.approx([0.003, 0.003, 0.004])
    assert (graph.tiers, graph.input_tier, graph.output_tier) == (("edge", "cloud"), "edge", "edge")


def test_without_known_work_it_is_shared_out_evenly() -> None:
    edge = profile("edge", {0: 0.0, 1: 0.010, 3: 0.070}, SIZES)
    assert [node.cost_s["edge"] for node in combine(edge, CLOUD, LINK).nodes] == pytest.approx([0.010, 0.030, 0.030])


def test_only_what_both_profiles_measured_counts_as_measured() -> None:
    assert measured_cuts(EDGE, CLOUD) == {0, 3}
    assert measured_cuts(EDGE, profile("cloud", {0: 0.01, 1: 0.004, 3: 0.0}, SIZES)) == {0, 1, 3}


@pytest.mark.parametrize("seed", range(20))
def test_the_total_of_a_measured_cut_is_what_was_measured(seed: int) -> None:
    edge, cloud = random_profiles(random.Random(seed), 9)
    graph = combine(edge, cloud, LINK)
    heads = {point.nodes: point.corrected_s for point in edge.points}
    tails = {point.nodes: point.corrected_s for point in cloud.points}
    for count in measured_cuts(edge, cloud):
        placement = {node.name: "edge" if index < count else "cloud" for index, node in enumerate(graph.nodes)}
        head = set(placement) - {name for name, tier in placement.items() if tier == "cloud"}
        crossing = {
            name
            for node in edge.nodes
            if node.name not in head
            for name in node.inputs
            if not any(name in other.outputs for other in edge.nodes if other.name not in head)
        }
        made_above = any(name in edge.nodes[index].outputs for index in range(count, 9) for name in edge.outputs)
        expected_s = heads[count] + tails[count] + (0.04 if count < 9 else 0.0)
        expected_s += sum((edge.tensors[name].bytes or 0) * 8 / 8e6 for name in crossing)
        expected_s += sum((edge.tensors[name].bytes or 0) * 8 / 8e6 for name in edge.outputs if made_above)
        assert total_s(graph, placement) == pytest.approx(expected_s, rel=1e-9)


def test_a_tensor_of_unknown_size_crosses_no_cut() -> None:
    sizes = [600_000, None, 20_000, 4_000]
    edge = profile("edge", {0: 0.0, 3: 0.07}, sizes)
    cloud = profile("cloud", {0: 0.01, 3: 0.0}, sizes)
    tensors = combine(edge, cloud, LINK).tensors
    assert [tensors[name].splittable for name in ("x", "t1", "t2")] == [True, False, True]


@pytest.mark.parametrize(
    ("edge", "cloud", "said"),
    [
        (CLOUD, CLOUD, "--edge: this profile was taken on the cloud side; expected one from the edge side"),
        (EDGE, EDGE, "--cloud: this profile was taken on the edge side"),
        (EDGE, profile("cloud", {0: 0.01, 3: 0.0}, SIZES, digest="ff" * 32), "of different model files"),
        (EDGE, profile("cloud", {0: 0.01, 3: 0.0}, SIZES, rows=4), "for different batches (1 and 4 rows)"),
        (EDGE, profile("cloud", {0: 0.01, 2: 0.0}, SIZES[1:]), "of different graphs of the same file"),
    ],
)
def test_profiles_that_do_not_belong_together_are_refused(edge: Profile, cloud: Profile, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        combine(edge, cloud, LINK)
    assert said in str(caught.value)


def written(path: Path, **changes: Any) -> Path:
    document = json.loads(EDGE.model_dump_json())
    path.write_text(json.dumps({**document, **changes}))
    return path


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert load_profile(written(tmp_path / "p.json")) == EDGE


POINTS = json.loads(EDGE.model_dump_json())["points"]
NODES = json.loads(EDGE.model_dump_json())["nodes"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tier": "fog"}, "p.json: tier: "),
        ({"extra": 1}, "p.json: extra: "),
        ({"points": POINTS[:1]}, "points: expected cuts after 0 to 3 nodes, including both ends"),
        ({"points": POINTS[1:]}, "including both ends"),
        ({"points": [POINTS[0], POINTS[1], POINTS[1], POINTS[2]]}, "each node once"),
        ({"points": [POINTS[0], {**POINTS[1], "corrected_s": 1.0}, POINTS[2]]}, "a longer head cannot take less time"),
        ({"points": [{**POINTS[0], "corrected_s": 0.01}, *POINTS[1:]]}, "0 s for the point that runs nothing"),
        ({"tensors": {}}, "missing: 't1', 't2', 'x', 'y'"),
        ({"nodes": [NODES[1], NODES[0], NODES[2]]}, "expected a topological order"),
        ({"nodes": [NODES[0], {**NODES[1], "name": "n0"}, NODES[2]]}, "two nodes have the same name"),
    ],
)
def test_a_profile_that_cannot_be_right_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_profile(written(tmp_path / "p.json", **changes))
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"tier": NaN}', "\x00"])
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(ConfigError):
        load_profile(tmp_path / "p.json")
    with pytest.raises(ConfigError, match="cannot read a profile"):
        load_profile(tmp_path / "none.json")


def test_tails_must_shrink_too(tmp_path: Path) -> None:
    document = json.loads(CLOUD.model_dump_json())
    document["points"][1]["corrected_s"] = 1.0
    (tmp_path / "p.json").write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="a shorter tail cannot take more time"):
        load_profile(tmp_path / "p.json")

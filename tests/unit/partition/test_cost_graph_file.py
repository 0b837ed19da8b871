"""The JSON of a cost graph: what is read, what may be left out, and what is refused with which words."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from upwell.shared.errors import ConfigError
from upwell.shared.partition.cost_graph import Codec, CostGraph, CostNode, CostTensor, Fused, TierLink
from upwell.shared.partition.cost_graph_file import read_cost_graph

LEAST = {
    "tiers": ["edge", "cloud"],
    "nodes": [{"name": "a", "inputs": ["x"], "outputs": ["y"], "cost_s": {"edge": 1, "cloud": 0.5}}],
    "tensors": {"x": {"bytes": 100}, "y": {"bytes": 10}},
    "inputs": ["x"],
    "outputs": ["y"],
    "input_tier": "edge",
    "output_tier": None,
    "links": [{"from": "edge", "to": "cloud", "bps": 1e6, "fixed_s": 0.1, "return_bps": 2e6}],
}


def graph(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(LEAST))
    return found | changes


def read(tmp_path: Path, document: object) -> CostGraph:
    path = tmp_path / "costs.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return read_cost_graph(path)


def problems(tmp_path: Path, document: object) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, document)
    assert {problem.path for problem in caught.value.problems} == {tmp_path / "costs.json"}
    return [(problem.key, problem.message) for problem in caught.value.problems]


def test_everything_that_the_format_has(tmp_path: Path) -> None:
    document = graph(
        tiers=["device", "gateway", "cloud"],
        nodes=[
            {
                "name": "b",
                "inputs": ["y", "y"],
                "outputs": [],
                "cost_s": {"gateway": 0, "cloud": None},
                "only": "gateway",
            },
            {"name": "a", "outputs": ["y", "z"], "cost_s": {}, "only": None},
        ],
        tensors={
            "x": {"bytes": 1.5, "splittable": False},
            "y": {"bytes": 8, "codecs": [{"name": "half", "bytes": 4, "encode_s": 0.1}]},
            "z": {"bytes": 0, "splittable": True},
        },
        outputs=["z", "x"],
        input_tier="gateway",
        output_tier="cloud",
        links=[  # in any order
            {"from": "gateway", "to": "cloud", "bps": 1e9, "fixed_s": 0.01, "return_bps": None},
            {"from": "device", "to": "gateway", "bps": 1000, "return_bps": 500},
        ],
        fused=[{"pair": ["b", "a"], "saves_s": {"device": 5, "cloud": -0.5}}],
        non_empty=["cloud"],
    )
    assert read(tmp_path, document) == CostGraph(
        tiers=("device", "gateway", "cloud"),
        nodes=(CostNode("b", ("y", "y"), (), {"gateway": 0.0}, "gateway"), CostNode("a", (), ("y", "z"), {})),
        tensors={
            "x": CostTensor(1.5, splittable=False),
            "y": CostTensor(8.0, codecs=(Codec("half", 4.0, 0.1, 0.0),)),
            "z": CostTensor(0.0),
        },
        inputs=("x",),
        outputs=("z", "x"),
        links=(TierLink(1000.0, 0.0, 500.0), TierLink(1e9, 0.01, math.inf)),
        input_tier="gateway",
        output_tier="cloud",
        fused=(Fused(("b", "a"), {"device": 5.0, "cloud": -0.5}),),
        non_empty=("cloud",),
    )


def test_the_least_that_the_format_asks_for(tmp_path: Path) -> None:
    found = read(tmp_path, graph())
    assert found.nodes[0].only is None
    assert found.tensors["x"].splittable
    assert (found.fused, found.non_empty, found.output_tier) == ((), (), None)
    one_tier = graph(tiers=["edge"], links=[], nodes=[{"name": "a", "outputs": ["y"], "cost_s": {"edge": 1}}])
    assert read(tmp_path, one_tier).links == ()


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    document = graph()
    change(document)
    return document


ONE_PROBLEM = {
    "no tiers": (lambda one: one.update(tiers=[]), "tiers", "at least 1 item"),
    "no nodes": (lambda one: one.update(nodes=[]), "nodes", "at least 1 item"),
    "no input_tier": (lambda one: one.pop("input_tier"), "input_tier", "this key is missing"),
    "a key that nobody knows": (
        lambda one: one["tensors"]["x"].update(splitable=False),
        "tensors.x.splitable",
        "unknown",
    ),
    "negative cost": (lambda one: one["nodes"][0]["cost_s"].update(edge=-1), "nodes[0].cost_s.edge", "or equal to 0"),
    "cost as text": (lambda one: one["nodes"][0]["cost_s"].update(edge="1"), "nodes[0].cost_s.edge", "got '1'"),
    "cost as a flag": (lambda one: one["nodes"][0]["cost_s"].update(edge=True), "nodes[0].cost_s.edge", "got True"),
    "cost of ages": (lambda one: one["nodes"][0]["cost_s"].update(edge=1e13), "nodes[0].cost_s.edge", "less than"),
    "no cost": (lambda one: one["nodes"][0].pop("cost_s"), "nodes[0].cost_s", "this key is missing"),
    "negative bytes": (lambda one: one["tensors"]["x"].update(bytes=-1), "tensors.x.bytes", "or equal to 0"),
    "endless bytes": (lambda one: one["tensors"]["x"].update(bytes=10**400), "tensors.x.bytes", "number"),
    "a flag as a number": (lambda one: one["tensors"]["x"].update(splittable=1), "tensors.x.splittable", "boolean"),
    "bps of 0": (lambda one: one["links"][0].update(bps=0), "links[0].bps", "expected"),
    "negative bps": (lambda one: one["links"][0].update(return_bps=-5), "links[0].return_bps", "expected"),
    "no bps": (lambda one: one["links"][0].update(bps=None), "links[0].bps", "expected"),
    "negative fixed_s": (lambda one: one["links"][0].update(fixed_s=-0.1), "links[0].fixed_s", "or equal to 0"),
    "a pair of three": (
        lambda one: one.update(fused=[{"pair": ["a", "a", "a"], "saves_s": {}}]),
        "fused[0].pair",
        "at most 2",
    ),
    "a pair of one node": (
        lambda one: one.update(fused=[{"pair": ["a", "a"], "saves_s": {}}]),
        "fused[0].pair",
        "twice",
    ),
    "a pair with a stranger": (
        lambda one: one.update(fused=[{"pair": ["a", "b"], "saves_s": {}}]),
        "fused[0].pair[1]",
        "there is no node 'b'",
    ),
    "a tier twice": (lambda one: one.update(tiers=["edge", "cloud", "cloud"]), "tiers[2]", "appears twice"),
    "a wrong tier": (
        lambda one: one.update(input_tier="egde"),
        "input_tier",
        "there is no tier 'egde'; did you mean 'edge'?",
    ),
    "a wrong output tier": (lambda one: one.update(output_tier="fog"), "output_tier", "there is no tier 'fog'"),
    "a cost on a wrong tier": (lambda one: one["nodes"][0]["cost_s"].update(fog=1), "nodes[0].cost_s", "no tier 'fog'"),
    "a pin to a wrong tier": (lambda one: one["nodes"][0].update(only="fog"), "nodes[0].only", "no tier 'fog'"),
    "savings on a wrong tier": (
        lambda one: (
            one["nodes"].append({"name": "b", "cost_s": {}}),
            one.update(fused=[{"pair": ["a", "b"], "saves_s": {"fog": 1}}]),
        ),
        "fused[0].saves_s",
        "no tier 'fog'",
    ),
    "a wrong tier that may not be empty": (lambda one: one.update(non_empty=["fog"]), "non_empty[0]", "no tier 'fog'"),
    "no link": (lambda one: one.update(links=[]), "links", "no link from 'edge' to 'cloud'"),
    "two links": (lambda one: one["links"].append(one["links"][0]), "links[1]", "a second link"),
    "a link down": (lambda one: one["links"][0].update({"from": "cloud", "to": "edge"}), "links[0]", "leads down"),
    "a name twice": (
        lambda one: one["nodes"].append({"name": "a", "cost_s": {}}),
        "nodes[1].name",
        "the node 'a' appears twice",
    ),
    "an input twice": (lambda one: one.update(inputs=["x", "x"]), "inputs[1]", "the tensor 'x' appears twice"),
    "an output twice": (lambda one: one.update(outputs=["y", "y"]), "outputs[1]", "the tensor 'y' appears twice"),
    "a tensor without bytes": (
        lambda one: one["nodes"][0]["inputs"].append("z"),
        "nodes[0].inputs[1]",
        "is missing from `tensors`",
    ),
    "an output that nobody makes": (
        lambda one: (one["tensors"].update(z={"bytes": 1}), one.update(outputs=["z"])),
        "outputs[0]",
        "nothing produces 'z'",
    ),
    "an input that nobody makes": (
        lambda one: (one["tensors"].update(z={"bytes": 1}), one["nodes"][0]["inputs"].append("z")),
        "nodes[0].inputs[1]",
        "nothing produces 'z'",
    ),
    "two makers": (
        lambda one: one["nodes"].append({"name": "b", "outputs": ["y"], "cost_s": {}}),
        "nodes[1].outputs[0]",
        "by 'a', and by 'b'",
    ),
    "an input that is made": (
        lambda one: one["nodes"][0]["outputs"].append("x"),
        "nodes[0].outputs[1]",
        "an input of the model, and by 'a'",
    ),
    "a circle of one": (
        lambda one: one["nodes"][0]["inputs"].append("y"),
        "nodes[0]",
        "feed each other in a cycle: 'a' -> 'a'",
    ),
    "a circle of two": (
        lambda one: (
            one["tensors"].update(z={"bytes": 1}),
            one["nodes"].append({"name": "b", "inputs": ["y"], "outputs": ["z"], "cost_s": {}}),
            one["nodes"][0]["inputs"].append("z"),
        ),
        "nodes[0]",
        "in a cycle: 'a' -> 'b' -> 'a'",
    ),
}


@pytest.mark.parametrize("name", ONE_PROBLEM)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, name: str) -> None:
    change, key, message = ONE_PROBLEM[name]
    (found,) = problems(tmp_path, changed(change))
    assert found[0] == key
    assert message in found[1]


def test_links_of_three_tiers_join_neighbours(tmp_path: Path) -> None:
    document = graph(tiers=["edge", "fog", "cloud"])
    assert problems(tmp_path, document) == [
        ("links[0]", "'edge' and 'cloud' are not neighbours; a link leads from a tier to the next one in `tiers`"),
        ("links", "no link from 'edge' to 'fog'"),
        ("links", "no link from 'fog' to 'cloud'"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[1, 2", "not JSON"),
        ("[]", "expected"),
        ('{"tiers": ["a"], "tiers": ["b"]}', "the key 'tiers' appears twice"),
        (json.dumps(LEAST).replace("0.5", "NaN"), "NaN is not JSON"),
        (json.dumps(LEAST).replace("0.5", "Infinity"), "Infinity is not JSON"),
        (json.dumps(LEAST).replace("0.5", "1e999"), "finite"),
        (json.dumps(LEAST).replace("0.5", "9" * 5000), "integer"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_json(tmp_path: Path, text: str, message: str) -> None:
    assert message in problems(tmp_path, text)[0][1]


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        read_cost_graph(path)
    with pytest.raises(ConfigError, match="cannot read a cost graph"):
        read_cost_graph(tmp_path / "none.json")


def test_of_many_problems_the_first_are_shown(tmp_path: Path) -> None:
    node = {"name": "a", "inputs": ["q"], "outputs": [], "cost_s": {}}
    found = problems(tmp_path, graph(nodes=[node] * 3000))
    assert len(found) == 21
    assert found[-1] == ("", "there are more problems than those shown")

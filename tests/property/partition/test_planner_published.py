"""Plans that others have published, as far as their figures allow: only those are here, and where they come from.

Scission: README.md of github.com/qub-blesson/Scission (b765b2b), VGG19 on a Raspberry Pi 4, an edge server and a cloud;
links from its benchmark_data/network_stats.csv. ScissionTL: `ScissionTL(Tensorflow)/README.md` and
benchmark_data/network_stats.csv of github.com/qub-blesson/ScissionTL (7cebb25), DenseNet169 on a Jetson TX2 and a
server. Their times per layer are in pickles, which nobody should open, so what no README tells is left out: where only
a sum of times was published, one node carries all of it, and a tier whose time was not published cannot run a node.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from upwell.shared.partition.cost_graph import Codec, CostGraph, CostNode, CostTensor, Sent, TierLink, total_s
from upwell.shared.partition.planner import plan

SECOND_ROUNDED = 1e-4
"""What rounding to four decimals may change in the sum of a few published figures."""


def scission() -> CostGraph:
    """VGG19, the query "the device is used, layer 10 on the edge, layer 16 in the cloud", in published pieces.

    Sizes are those of VGG19's float32 activations and 128 bytes of header: 2.4087 MB and 3.2115 MB in all, as
    published for the first and the fifth result. Those two also tell what layer 12 takes more on the edge.
    """
    up = TierLink(1.6e6, fixed_s=0.0667), TierLink(50e6, fixed_s=0.020)
    after_6, after_11, after_12 = (4.0 * 56 * 56 * 128 + 128, 4.0 * 28 * 28 * 256 + 128, 4.0 * 28 * 28 * 512 + 128)
    sending_s = 0.0667 + after_6 * 8 / 1.6e6 + 0.020 + after_11 * 8 / 50e6
    more_s = (9.1511 - 9.0106) - (after_12 - after_11) * 8 / 50e6
    return CostGraph(
        ("device", "edge", "cloud"),
        (
            CostNode("0-6", ("picture",), ("after 6",), {"device": 9.0106 - sending_s}),
            CostNode("7-11", ("after 6",), ("after 11",), {"edge": 0.0}),
            CostNode("12", ("after 11",), ("after 12",), {"edge": more_s, "cloud": 0.0}),
            CostNode("13-25", ("after 12",), ("classes",), {"cloud": 0.0}),
        ),
        {
            "picture": CostTensor(150e3),
            "after 6": CostTensor(after_6),
            "after 11": CostTensor(after_11),
            "after 12": CostTensor(after_12),
            "classes": CostTensor(4000.0),
        },
        ("picture",),
        ("classes",),
        up,
        "device",
        None,
        non_empty=("device", "edge", "cloud"),
    )


def test_scission_vgg19_on_three_tiers() -> None:
    graph = scission()
    found = plan(graph)
    assert found.total_s == pytest.approx(9.0106, abs=SECOND_ROUNDED)
    assert found.placement == {"0-6": "device", "7-11": "edge", "12": "cloud", "13-25": "cloud"}
    assert sum(one.bytes for one in found.sent) / 1e6 == pytest.approx(2.4087, abs=SECOND_ROUNDED)
    (fifth,) = found.alternatives
    assert fifth.total_s == pytest.approx(9.1511, abs=SECOND_ROUNDED)
    assert fifth.placement == {"0-6": "device", "7-11": "edge", "12": "edge", "13-25": "cloud"}
    assert (found.edge_only_s, found.cloud_only_s) == (None, None)
    compute_s = graph.nodes[0].cost_s["device"]
    assert 0.7 < compute_s < 0.8  # what is left for computing: the link to the edge is all that counts


CUTS = {
    # after layer: total, layers of the codec, conversion, transfer (s); bytes by codec and plain (MB)
    1: (0.1261, 0.0008, 0.0001, 0.0490, 0.1588, 0.6349),
    2: (0.2152, 0.0009, 0.0006, 0.1366, 0.8029, 3.2114),
    3: (0.2161, 0.0009, 0.0006, 0.1366, 0.8029, 3.2114),
    51: (0.1870, 0.0009, 0.0002, 0.0820, 0.4015, 1.6058),
    139: (0.2068, 0.0008, 0.0001, 0.0547, 0.2008, 0.8029),
}
"""The five published results. The transfer layers are a codec: small networks that shrink what is sent."""

LAYERS = {1: "0-1", 2: "2", 3: "3", 51: "4-51", 139: "52-139"}


def scission_tl() -> CostGraph:
    """DenseNet169 cut at the published layers: what a piece takes more on the device is the difference of two cuts."""
    tensors = {"picture": CostTensor(150e3), "classes": CostTensor(4000.0)}
    nodes, read, computed_s = [], "picture", 0.0
    for layer, name in LAYERS.items():
        total, layers_s, convert_s, transfer_s, coded_mb, plain_mb = CUTS[layer]
        compute_s = total - layers_s - convert_s - transfer_s
        made = f"after {layer}"
        tensors[made] = CostTensor(
            plain_mb * 1e6, codecs=(Codec("transfer layer", coded_mb * 1e6, layers_s, convert_s),)
        )
        costs = {"device": compute_s - computed_s} | ({} if layer == 1 else {"edge": 0.0})
        nodes.append(CostNode(name, (read,), (made,), costs))
        read, computed_s = made, compute_s
    nodes.append(CostNode("140-596", (read,), ("classes",), {"edge": 0.0}))
    link = TierLink(58.8e6, fixed_s=0.0274)
    return CostGraph(("device", "edge"), tuple(nodes), tensors, ("picture",), ("classes",), (link,), "device", None)


def cut_after(graph: CostGraph, layer: int) -> dict[str, str]:
    names = [node.name for node in graph.nodes]
    last = names.index(LAYERS[layer])
    return {name: "device" if index <= last else "edge" for index, name in enumerate(names)}


def test_scission_tl_densenet169() -> None:
    graph = scission_tl()
    for layer, (total, *_) in CUTS.items():
        assert total_s(graph, cut_after(graph, layer)) == pytest.approx(total, abs=2 * SECOND_ROUNDED)
    found = plan(graph)
    assert found.placement == cut_after(graph, 1)
    assert found.total_s == pytest.approx(0.1261, abs=SECOND_ROUNDED)
    assert found.sent == (Sent("after 1", "device", "edge", 0.1588e6, "transfer layer"),)


def test_the_sentinel_of_scission_tl_means_that_there_is_no_cut() -> None:
    """A time of −1 marks a cut that was left out; read as a time it would beat all others."""
    graph = scission_tl()
    after_51 = CostTensor(1.6058e6, codecs=(Codec("transfer layer", 0.4015e6, -1.0, -1.0),))
    as_times = replace(graph, tensors={**graph.tensors, "after 51": after_51})
    assert total_s(as_times, cut_after(graph, 51)) < 0
    left_out = replace(graph, tensors={**graph.tensors, "after 51": replace(after_51, splittable=False)})
    found = plan(left_out)
    assert found.placement == cut_after(graph, 1)
    assert cut_after(graph, 51) not in [one.placement for one in found.alternatives]
    without_1 = replace(left_out.tensors["after 1"], splittable=False)
    assert plan(replace(left_out, tensors={**left_out.tensors, "after 1": without_1})).placement == cut_after(
        graph, 139
    )

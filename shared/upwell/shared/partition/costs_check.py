"""What can be wrong with a cost graph as a whole: names, tiers, links, and the order of its nodes."""

from __future__ import annotations

import difflib
import itertools
from collections import deque
from collections.abc import Collection, Iterator, Sequence

from upwell.shared.partition.costs import CostGraph

Found = Iterator[tuple[str, str]]
"""Place and message of each problem."""


_MOST_COMPARED = 5000
"""Among more names none is looked for that was meant: that would take seconds."""


def problems_in(graph: CostGraph, links: Sequence[tuple[str, str]]) -> Found:
    """Every problem with its place in the file; `links` are the tiers that its links were said to join, in order."""
    is_sound = True
    for check in (
        _tier_problems(graph),
        _link_problems(graph.tiers, links),
        _name_problems(graph),
        _maker_problems(graph),
    ):
        for problem in check:
            is_sound = False
            yield problem
    if is_sound:
        yield from _cycle_problems(graph)


def _tier_problems(graph: CostGraph) -> Found:
    yield from _twice("tiers", graph.tiers, "tier")
    named = [("input_tier", graph.input_tier)]
    if graph.output_tier is not None:
        named.append(("output_tier", graph.output_tier))
    for index, node in enumerate(graph.nodes):
        named += [(f"nodes[{index}].cost_s", tier) for tier in node.cost_s]
        if node.only is not None:
            named.append((f"nodes[{index}].only", node.only))
    for index, fused in enumerate(graph.fused):
        named += [(f"fused[{index}].saves_s", tier) for tier in fused.saves_s]
    named += [(f"non_empty[{index}]", tier) for index, tier in enumerate(graph.non_empty)]
    for place, tier in named:
        if tier not in graph.tiers:
            yield place, _unknown("tier", tier, graph.tiers)


def _link_problems(tiers: Sequence[str], links: Sequence[tuple[str, str]]) -> Found:
    if len(set(tiers)) < len(tiers):
        return
    steps = list(itertools.pairwise(tiers))
    for index, link in enumerate(links):
        place, (source, target) = f"links[{index}]", link
        unknown = [tier for tier in link if tier not in tiers]
        if unknown:
            yield place, _unknown("tier", unknown[0], tiers)
        elif (target, source) in steps:
            yield place, f"leads down; write it from {target!r} to {source!r}, with `return_bps` for the way back"
        elif link not in steps:
            yield place, f"{source!r} and {target!r} are no neighbours; a link leads from a tier to the next of `tiers`"
        elif link in links[:index]:
            yield place, f"a second link from {source!r} to {target!r}"
    for source, target in steps:
        if (source, target) not in links and (target, source) not in links:
            yield "links", f"no link from {source!r} to {target!r}"


def _name_problems(graph: CostGraph) -> Found:
    names = [node.name for node in graph.nodes]
    yield from _twice("nodes", names, "node", ".name")
    yield from _twice("inputs", graph.inputs, "tensor")
    yield from _twice("outputs", graph.outputs, "tensor")
    used = [(f"inputs[{index}]", name) for index, name in enumerate(graph.inputs)]
    used += [(f"outputs[{index}]", name) for index, name in enumerate(graph.outputs)]
    for index, node in enumerate(graph.nodes):
        used += [(f"nodes[{index}].inputs[{number}]", name) for number, name in enumerate(node.inputs)]
        used += [(f"nodes[{index}].outputs[{number}]", name) for number, name in enumerate(node.outputs)]
    for place, name in used:
        if name not in graph.tensors:
            yield place, f"`tensors` says nothing of {name!r}{_alike(name, graph.tensors)}"
    known = set(names)
    for index, fused in enumerate(graph.fused):
        for number, name in enumerate(fused.pair):
            if name not in known:
                yield f"fused[{index}].pair[{number}]", _unknown("node", name, names)
        if fused.pair[0] == fused.pair[1]:
            yield f"fused[{index}].pair", f"expected two nodes, got {fused.pair[0]!r} twice"


def _maker_problems(graph: CostGraph) -> Found:
    """Tensors that nothing makes, or two things."""
    maker = dict.fromkeys(graph.inputs, "it is an input of the model")
    for index, node in enumerate(graph.nodes):
        for number, name in enumerate(node.outputs):
            if name in maker:
                yield (
                    f"nodes[{index}].outputs[{number}]",
                    f"{name!r} is made twice: {maker[name]}, and {node.name!r} makes it",
                )
            maker.setdefault(name, f"{node.name!r} makes it")
    read = [
        (f"nodes[{index}].inputs[{number}]", name)
        for index, node in enumerate(graph.nodes)
        for number, name in enumerate(node.inputs)
    ]
    for place, name in [*read, *((f"outputs[{index}]", name) for index, name in enumerate(graph.outputs))]:
        if name in graph.tensors and name not in maker:
            yield place, f"nothing makes {name!r}: expected an output of a node, or a name among `inputs`"


def _cycle_problems(graph: CostGraph) -> Found:
    maker = {name: index for index, node in enumerate(graph.nodes) for name in node.outputs}
    feeds = [{maker[name] for name in node.inputs if name in maker} for node in graph.nodes]
    readers: list[list[int]] = [[] for _ in graph.nodes]
    for index, makers in enumerate(feeds):
        for other in makers:
            readers[other].append(index)
    waits = [len(makers) for makers in feeds]
    ready = deque(index for index, count in enumerate(waits) if not count)
    while ready:
        for index in readers[ready.popleft()]:
            waits[index] -= 1
            if not waits[index]:
                ready.append(index)
    stuck = {index for index, count in enumerate(waits) if count}
    if stuck:
        walk = [min(stuck)]
        while walk[-1] not in walk[:-1]:
            walk.append(min(feeds[walk[-1]] & stuck))
        round_trip = walk[walk.index(walk[-1]) :][::-1]
        names = " -> ".join(repr(graph.nodes[index].name) for index in round_trip)
        yield f"nodes[{min(round_trip)}]", f"the nodes feed each other in a circle: {names}"


def _twice(place: str, names: Sequence[str], what: str, key: str = "") -> Found:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            yield f"{place}[{index}]{key}", f"the {what} {name!r} is there twice"
        seen.add(name)


def _unknown(what: str, name: str, known: Collection[str]) -> str:
    return f"there is no {what} {name!r}{_alike(name, known)}"


def _alike(name: str, known: Collection[str]) -> str:
    alike = difflib.get_close_matches(name, known, n=1) if len(known) <= _MOST_COMPARED else []
    return f"; did you mean {alike[0]!r}?" if alike else ""

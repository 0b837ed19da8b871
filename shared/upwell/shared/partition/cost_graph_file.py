"""The JSON file of `upwell partition plan --graph`: a cost graph that anyone may have written, checked first.

    {"tiers": ["edge", "cloud"],
     "nodes": [{"name": "conv", "inputs": ["x"], "outputs": ["y"], "only": null,
                "cost_s": {"edge": 0.02, "cloud": 0.002}}],
     "tensors": {"x": {"bytes": 150528, "splittable": true}, "y": {"bytes": 4000}},
     "inputs": ["x"], "outputs": ["y"], "input_tier": "edge", "output_tier": "edge",
     "links": [{"from": "edge", "to": "cloud", "bps": 20e6, "fixed_s": 0.04, "return_bps": 40e6}],
     "fused": [{"pair": ["conv", "relu"], "saves_s": {"edge": 0.001}}],
     "non_empty": []}

A tier missing from `cost_s` (or null) cannot run the node. `splittable` is true and `only` null unless they say
otherwise; `fused`, `non_empty` and a node's `inputs` and `outputs` may be left out, `output_tier` and `return_bps` may
be null or left out (outputs stay where they are made; the way back takes no time), and so may `fixed_s` (0). A tensor
may have `codecs`: other ways to send it, each with `name`, `bytes`, `encode_s` and `decode_s`. An output made below
`output_tier` costs nothing more, and one on its way back may be of a tensor that is not splittable.
"""

from __future__ import annotations

import difflib
import itertools
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Any, NoReturn

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails

from upwell.shared.config.yaml import FilePart
from upwell.shared.config.yaml_tree import dotted
from upwell.shared.errors import ConfigError, Problem
from upwell.shared.files import read_file
from upwell.shared.partition.cost_graph import Codec, CostGraph, CostNode, CostTensor, Fused, TierLink

MAX_FILE_BYTES = 64 << 20
_SHOWN_PROBLEMS = 20

_LONGEST_S = 1e12
_Seconds = Annotated[float, Field(ge=0, le=_LONGEST_S, allow_inf_nan=False, strict=True)]
_Saving = Annotated[float, Field(ge=-_LONGEST_S, le=_LONGEST_S, allow_inf_nan=False, strict=True)]
_Bytes = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False, strict=True)]
_BitsPerS = Annotated[float, Field(ge=1e-3, le=1e18, allow_inf_nan=False, strict=True)]
_Name = Annotated[str, Field(min_length=1)]


class CostNodeFacts(FilePart):
    """A node; a tier that is missing or null in `cost_s` cannot run it."""

    name: _Name
    inputs: list[str] = Field(default_factory=list)
    outputs: list[str] = Field(default_factory=list)
    cost_s: dict[str, _Seconds | None]
    only: str | None = None


class CodecFacts(FilePart):
    """Another way to send a tensor."""

    name: _Name
    bytes: _Bytes
    encode_s: _Seconds = 0.0
    decode_s: _Seconds = 0.0


class CostTensorFacts(FilePart):
    """The cost of sending a tensor."""

    bytes: _Bytes
    splittable: Annotated[bool, Field(strict=True)] = True
    codecs: list[CodecFacts] = Field(default_factory=list)


class LinkFacts(FilePart):
    """From a tier to the next, which the key `to` names."""

    from_: str = Field(alias="from")
    to: str
    bps: _BitsPerS
    fixed_s: _Seconds = 0.0
    return_bps: _BitsPerS | None = None


class FusedFacts(FilePart):
    """Two nodes that take less time when they share a tier; negative if they take more."""

    pair: Annotated[list[str], Field(min_length=2, max_length=2)]
    saves_s: dict[str, _Saving]


class GraphFacts(FilePart):
    """The file."""

    tiers: Annotated[list[_Name], Field(min_length=1)]
    nodes: Annotated[list[CostNodeFacts], Field(min_length=1)]
    tensors: dict[str, CostTensorFacts]
    inputs: list[str]
    outputs: list[str]
    input_tier: str
    output_tier: str | None = None
    links: list[LinkFacts]
    fused: list[FusedFacts] = Field(default_factory=list)
    non_empty: list[str] = Field(default_factory=list)


def read_cost_graph(path: Path) -> CostGraph:
    """Read the graph in the file at `path`. Raises `ConfigError` with the first 20 problems, each with its place."""
    document = _document(read_file(path, "a cost graph", MAX_FILE_BYTES), path)
    try:
        facts = GraphFacts.model_validate(document)
    except ValidationError as error:
        _refuse(path, ((dotted(one["loc"]), _message(one)) for one in error.errors(include_url=False)))
        raise
    graph = _graph(facts)
    _refuse(path, problems_in(graph, [(link.from_, link.to) for link in facts.links]))
    return graph


def _graph(facts: GraphFacts) -> CostGraph:
    links = {(link.from_, link.to): link for link in facts.links}
    steps = itertools.pairwise(facts.tiers)
    return CostGraph(
        tiers=tuple(facts.tiers),
        nodes=tuple(
            CostNode(
                node.name,
                tuple(node.inputs),
                tuple(node.outputs),
                {tier: cost for tier, cost in node.cost_s.items() if cost is not None},
                node.only,
            )
            for node in facts.nodes
        ),
        tensors={
            name: CostTensor(
                tensor.bytes,
                tensor.splittable,
                tuple(Codec(one.name, one.bytes, one.encode_s, one.decode_s) for one in tensor.codecs),
            )
            for name, tensor in facts.tensors.items()
        },
        inputs=tuple(facts.inputs),
        outputs=tuple(facts.outputs),
        links=tuple(_link(links[step]) for step in steps if step in links),
        input_tier=facts.input_tier,
        output_tier=facts.output_tier,
        fused=tuple(Fused((one.pair[0], one.pair[1]), one.saves_s) for one in facts.fused),
        non_empty=tuple(facts.non_empty),
    )


def _link(facts: LinkFacts) -> TierLink:
    return TierLink(facts.bps, facts.fixed_s, math.inf if facts.return_bps is None else facts.return_bps)


def _document(data: bytes, path: Path) -> Any:
    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=_once, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ConfigError.at(path, f"not JSON: {error.msg}", line=error.lineno, column=error.colno) from None
    except UnicodeDecodeError:
        raise ConfigError.at(path, "not UTF-8 text; expected a cost graph in JSON") from None
    except RecursionError:
        raise ConfigError.at(path, "nested too deeply; expected a cost graph") from None
    except ValueError as error:  # a repeated key, NaN, or a number of thousands of digits
        raise ConfigError.at(path, str(error)) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice!r} appears twice in one object")
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(
        f"{text} is not JSON; expected a finite number, or null (or no key) for a tier that cannot run a node"
    )


def _message(details: ErrorDetails) -> str:
    kind, given = details["type"], repr(details["input"])
    if kind == "missing":
        return "this key is missing"
    if kind == "extra_forbidden":
        return "unknown key"
    message = str(details["msg"]).removeprefix("Input should be ")
    return f"expected {message}, got {given if len(given) <= 60 else given[:57] + '...'}"


def _refuse(path: Path, problems: Iterable[tuple[str, str]]) -> None:
    """Raise `ConfigError` if there is any problem."""
    found = [
        Problem(path, None, None, key, message) for key, message in itertools.islice(problems, _SHOWN_PROBLEMS + 1)
    ]
    if len(found) > _SHOWN_PROBLEMS:
        found[_SHOWN_PROBLEMS:] = [Problem(path, None, None, "", "there are more problems than those shown")]
    if found:
        raise ConfigError(found)


Found = Iterator[tuple[str, str]]
"""The position and message of each problem."""


_MOST_COMPARED = 5000
"""Maximum number of names searched for suggestions, since more would take seconds."""


def problems_in(graph: CostGraph, links: Sequence[tuple[str, str]]) -> Found:
    """Every problem with its place in the file; `links` are the tiers that its links name, in order."""
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
            yield place, f"it leads down; write it from {target!r} to {source!r}, with `return_bps` for the way back"
        elif link not in steps:
            yield (
                place,
                f"{source!r} and {target!r} are not neighbours; a link leads from a tier to the next one in `tiers`",
            )
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
            yield place, f"{name!r} is missing from `tensors`{_alike(name, graph.tensors)}"
    known = set(names)
    for index, fused in enumerate(graph.fused):
        for number, name in enumerate(fused.pair):
            if name not in known:
                yield f"fused[{index}].pair[{number}]", _unknown("node", name, names)
        if fused.pair[0] == fused.pair[1]:
            yield f"fused[{index}].pair", f"expected two nodes, got {fused.pair[0]!r} twice"


def _maker_problems(graph: CostGraph) -> Found:
    """Tensors with no producer, or two."""
    maker = dict.fromkeys(graph.inputs, "as an input of the model")
    for index, node in enumerate(graph.nodes):
        for number, name in enumerate(node.outputs):
            if name in maker:
                yield (
                    f"nodes[{index}].outputs[{number}]",
                    f"{name!r} is produced twice: {maker[name]}, and by {node.name!r}",
                )
            maker.setdefault(name, f"by {node.name!r}")
    read = [
        (f"nodes[{index}].inputs[{number}]", name)
        for index, node in enumerate(graph.nodes)
        for number, name in enumerate(node.inputs)
    ]
    for place, name in [*read, *((f"outputs[{index}]", name) for index, name in enumerate(graph.outputs))]:
        if name in graph.tensors and name not in maker:
            yield place, f"nothing produces {name!r}; expected an output of a node, or a name in `inputs`"


def _cycle_problems(graph: CostGraph) -> Found:
    maker = {name: index for index, node in enumerate(graph.nodes) for name in node.outputs}
    feeds = {index: [maker[name] for name in node.inputs if name in maker] for index, node in enumerate(graph.nodes)}
    try:
        TopologicalSorter(feeds).prepare()
    except CycleError as error:
        circle = error.args[1][1:]
        first = circle.index(min(circle))
        names = " -> ".join(repr(graph.nodes[index].name) for index in (*circle[first:], *circle[:first], min(circle)))
        yield f"nodes[{min(circle)}]", f"the nodes feed each other in a cycle: {names}"


def _twice(place: str, names: Sequence[str], what: str, key: str = "") -> Found:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            yield f"{place}[{index}]{key}", f"the {what} {name!r} appears twice"
        seen.add(name)


def _unknown(what: str, name: str, known: Collection[str]) -> str:
    return f"there is no {what} {name!r}{_alike(name, known)}"


def _alike(name: str, known: Collection[str]) -> str:
    alike = difflib.get_close_matches(name, known, n=1) if len(known) <= _MOST_COMPARED else []
    return f"; did you mean {alike[0]!r}?" if alike else ""

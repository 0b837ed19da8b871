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

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from upwell.shared.config.yaml_tree import dotted
from upwell.shared.errors import ConfigError, Problem
from upwell.shared.files import read_file
from upwell.shared.partition.costs import Codec, CostGraph, CostNode, CostTensor, Fused, TierLink
from upwell.shared.partition.costs_check import problems_in

MAX_FILE_BYTES = 64 << 20
_SHOWN_PROBLEMS = 20

_LONGEST_S = 1e12
_Seconds = Annotated[float, Field(ge=0, le=_LONGEST_S, allow_inf_nan=False, strict=True)]
_Saving = Annotated[float, Field(ge=-_LONGEST_S, le=_LONGEST_S, allow_inf_nan=False, strict=True)]
_Bytes = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False, strict=True)]
_BitsPerS = Annotated[float, Field(ge=1e-3, le=1e18, allow_inf_nan=False, strict=True)]
_Name = Annotated[str, Field(min_length=1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CostNodeFacts(_Part):
    """A node; a tier that `cost_s` leaves out or gives null cannot run it."""

    name: _Name
    inputs: list[str] = []
    outputs: list[str] = []
    cost_s: dict[str, _Seconds | None]
    only: str | None = None


class CodecFacts(_Part):
    """Another way to send a tensor."""

    name: _Name
    bytes: _Bytes
    encode_s: _Seconds = 0.0
    decode_s: _Seconds = 0.0


class CostTensorFacts(_Part):
    """What a tensor costs to send."""

    bytes: _Bytes
    splittable: Annotated[bool, Field(strict=True)] = True
    codecs: list[CodecFacts] = []


class LinkFacts(_Part):
    """From a tier to the next. The key `to` says which that is."""

    from_: str = Field(alias="from")
    to: str
    bps: _BitsPerS
    fixed_s: _Seconds = 0.0
    return_bps: _BitsPerS | None = None


class FusedFacts(_Part):
    """Two nodes that take less where they share a tier; negative where they take more."""

    pair: Annotated[list[str], Field(min_length=2, max_length=2)]
    saves_s: dict[str, _Saving]


class GraphFacts(_Part):
    """The file."""

    tiers: Annotated[list[_Name], Field(min_length=1)]
    nodes: Annotated[list[CostNodeFacts], Field(min_length=1)]
    tensors: dict[str, CostTensorFacts]
    inputs: list[str]
    outputs: list[str]
    input_tier: str
    output_tier: str | None = None
    links: list[LinkFacts]
    fused: list[FusedFacts] = []
    non_empty: list[str] = []


def read_cost_graph(path: Path) -> CostGraph:
    """The graph in the file at `path`. Raises `ConfigError` with the first 20 problems, each with its place."""
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
    if facts.return_bps is None:
        return TierLink(facts.bps, facts.fixed_s)
    return TierLink(facts.bps, facts.fixed_s, facts.return_bps)


class _Twice(ValueError):
    """A key is there twice in one object."""


def _document(data: bytes, path: Path) -> Any:
    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=_once, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ConfigError.at(path, f"not JSON: {error.msg}", line=error.lineno, column=error.colno) from None
    except UnicodeDecodeError:
        raise ConfigError.at(path, "not UTF-8 text; expected a cost graph in JSON") from None
    except RecursionError:
        raise ConfigError.at(path, "nested too deeply; expected a cost graph") from None
    except ValueError as error:  # a key twice, NaN, a number of thousands of digits
        raise ConfigError.at(path, str(error)) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Twice(f"the key {twice!r} is there twice in one object; each may be there once")
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(
        f"{text} is no JSON; expected a finite number, or null or nothing for a tier that cannot run a node"
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
        found[_SHOWN_PROBLEMS:] = [Problem(path, None, None, "", "more is wrong than is shown")]
    if found:
        raise ConfigError(found)

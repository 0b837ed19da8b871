"""The cuts of a model to write: those of a plan, or one that a person names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from upwell.shared.errors import ConfigError
from upwell.shared.partition.model_graph import Graph
from upwell.shared.partition.plan_file import PieceFacts, PlanFacts

_EDGE = "edge"
_SHOWN = 3


@dataclass(frozen=True)
class ChosenCut:
    """A cut by name. `edge` are nodes of the contracted graph; the times are those of the plan, None if it has none.

    `name` is `c` and the number of nodes on the edge, followed by `-2` and so on if another cut has the same number.
    """

    name: str
    edge: frozenset[int]
    edge_s: float | None = None
    cloud_s: float | None = None


def best_of_plan(plan: PlanFacts, graph: Graph, path: Path) -> ChosenCut:
    """The cut of the plan in `path`. Raises `ConfigError` if the plan has none, or is for another model."""
    edge = _edge_of(plan.placement, plan, graph, path)
    if edge is None:
        only = "".join(set(plan.placement.values()))
        raise ConfigError.at(
            path, f"the plan puts every node on {only!r}: there is nothing to split; --cut N splits it anyway"
        )
    piece = next((one for one in plan.envelope if one.placement == plan.placement), None)
    return _named([_chosen(edge, piece)])[0]


def all_of_plan(plan: PlanFacts, graph: Graph, path: Path) -> list[ChosenCut]:
    """Every cut of the plan and its envelope that something crosses, shortest head first. Raises `ConfigError` if
    there is none.
    """
    found: dict[frozenset[int], ChosenCut] = {}
    for placement, piece in (*((one.placement, one) for one in plan.envelope), (plan.placement, None)):
        edge = _edge_of(placement, plan, graph, path)
        if edge is not None and graph.sent(edge):
            found.setdefault(edge, _chosen(edge, piece))
    if not found:
        raise ConfigError.at(
            path, "no placement of the plan or its envelope splits the model, so there is nothing to write"
        )
    return _named(sorted(found.values(), key=lambda one: (len(one.edge), sorted(one.edge))))


def cut_at(text: str, graph: Graph) -> ChosenCut:
    """The cut after the first N nodes of the graph's order, or after the node of that name.

    Raises `ConfigError` if it does not exist.
    """
    count = int(text) if text.isascii() and text.isdigit() else _position(text, graph)
    most = len(graph.nodes) - 1
    if not 1 <= count <= most:
        wanted = f"a number from 1 to {most}" if most else "a model with more than one node that can be cut"
        raise ConfigError.at(
            None, f"the head would have {count} of {len(graph.nodes)} nodes; expected {wanted}", "--cut"
        )
    return _named([_chosen(frozenset(range(count)), None)])[0]


def _position(name: str, graph: Graph) -> int:
    for index, node in enumerate(graph.nodes):
        if node.name == name:
            return index + 1
    names = [node.name for node in graph.nodes]
    near = [one for one in names if name and name in one][:_SHOWN] or names[:_SHOWN]
    raise ConfigError.at(None, f"there is no node {name!r}; expected one of {', '.join(map(repr, near))}, …", "--cut")


def _chosen(edge: frozenset[int], piece: PieceFacts | None) -> ChosenCut:
    return ChosenCut("", edge) if piece is None else ChosenCut("", edge, piece.edge_s, piece.cloud_s)


def _named(cuts: Sequence[ChosenCut]) -> list[ChosenCut]:
    taken: dict[str, int] = {}
    named = []
    for cut in cuts:
        name = f"c{len(cut.edge)}"
        taken[name] = taken.get(name, 0) + 1
        named.append(replace(cut, name=name if taken[name] == 1 else f"{name}-{taken[name]}"))
    return named


def _edge_of(placement: Mapping[str, str], plan: PlanFacts, graph: Graph, path: Path) -> frozenset[int] | None:
    """The nodes on the lower of two tiers; None if only one tier has any."""
    _check_nodes(placement, graph, path)
    tiers = list(dict.fromkeys(placement.values()))
    if len(tiers) > 2:
        raise ConfigError.at(
            path, f"the plan uses {len(tiers)} tiers ({', '.join(tiers)}); a model is split into two halves"
        )
    if len(tiers) < 2:
        return None
    sides = {
        tier: frozenset(index for index, node in enumerate(graph.nodes) if placement[node.name] == tier)
        for tier in tiers
    }
    lower = [tier for tier in tiers if graph.is_downset(sides[tier])]
    if not lower:
        raise ConfigError.at(path, f"not a cut: {tiers[0]!r} reads what {tiers[1]!r} makes, and vice versa")
    senders = {one.from_ for one in plan.sent} | {_EDGE}
    return sides[next((tier for tier in lower if tier in senders), lower[0])]


def _check_nodes(placement: Mapping[str, str], graph: Graph, path: Path) -> None:
    names = [node.name for node in graph.nodes]
    missing = [name for name in names if name not in placement]
    unknown = [name for name in placement if name not in set(names)]
    if missing or unknown:
        kind, examples = ("lacks", missing) if missing else ("has in addition", unknown)
        shown = ", ".join(map(repr, examples[:_SHOWN])) + (", …" if len(examples) > _SHOWN else "")
        raise ConfigError.at(path, f"the plan is for another model: it {kind} {len(examples)} nodes: {shown}")

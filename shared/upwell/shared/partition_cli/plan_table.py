"""A plan of a cost graph, as JSON and at a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from upwell.shared.partition.costs import CostGraph, Placement, Plan, Sent

_MOST_NODES = 40
_MOST_TENSORS = 20


def document(plan: Plan) -> dict[str, Any]:
    """The answer of `upwell partition plan --graph --json`; `codec` is there where a tensor is sent by one."""
    return {
        "total_s": plan.total_s,
        "placement": dict(plan.placement),
        "sent": [_sent(one) for one in plan.sent],
        "baselines": {"edge_only_s": plan.edge_only_s, "cloud_only_s": plan.cloud_only_s},
        "alternatives": [{"placement": dict(other.placement), "total_s": other.total_s} for other in plan.alternatives],
    }


def _sent(one: Sent) -> dict[str, Any]:
    size = int(one.bytes) if one.bytes == int(one.bytes) else one.bytes
    facts = {"tensor": one.tensor, "from": one.source, "to": one.target, "bytes": size}
    return {**facts, "codec": one.codec} if one.codec else facts


def show(console: Console, graph: CostGraph, plan: Plan) -> None:
    """Print where nodes run, what is sent, and what it takes beside one tier alone and other placements."""
    console.print(_totals(graph, plan))
    console.print()
    for tier in graph.tiers:
        console.print(Text(f"{tier}: {_nodes(graph, plan.placement, tier)}"), soft_wrap=True)
    if plan.sent:
        console.print()
        console.print(_sends(plan))
    more = len(plan.sent) - _MOST_TENSORS
    if more > 0:
        console.print(f"and {more} more; --json lists them all")


def _totals(graph: CostGraph, plan: Plan) -> Table:
    table = Table(Column("", overflow="fold"), Column("total", justify="right", no_wrap=True), box=None, pad_edge=False)
    table.add_column("", overflow="fold")
    table.add_row("best placement", _ms(plan.total_s), _counts(graph, plan.placement))
    for tier, total_s in ((graph.tiers[0], plan.edge_only_s), (graph.tiers[-1], plan.cloud_only_s)):
        table.add_row(Text(f"{tier} only"), *_beside(total_s, plan.total_s))
    for number, other in enumerate(plan.alternatives, 1):
        table.add_row(f"alternative {number}", _ms(other.total_s), _counts(graph, other.placement))
    return table


def _beside(total_s: float | None, best_s: float) -> tuple[str, str]:
    if total_s is None:
        return "–", "not possible"
    times = f"{total_s / best_s:.3g} times the best" if best_s > 0 else ""
    return _ms(total_s), times


def _counts(graph: CostGraph, placement: Placement) -> Text:
    counts: Mapping[str, int] = {tier: sum(one == tier for one in placement.values()) for tier in graph.tiers}
    return Text(", ".join(f"{tier} {count}" for tier, count in counts.items()))


def _nodes(graph: CostGraph, placement: Placement, tier: str) -> str:
    """Names in the graph's order; of many the first and the last."""
    names = [node.name for node in graph.nodes if placement[node.name] == tier]
    if not names:
        return "nothing"
    if len(graph.nodes) > _MOST_NODES and len(names) > 2:
        return f"{names[0]} … {names[-1]} ({len(names)} nodes)"
    return ", ".join(names)


def _sends(plan: Plan) -> Table:
    coded = any(one.codec for one in plan.sent)
    titles = [Column("sent", overflow="fold"), Column("from"), Column("to"), Column("bytes", justify="right")]
    table = Table(*titles, *([Column("codec")] if coded else []), box=None, pad_edge=False)
    for one in plan.sent[:_MOST_TENSORS]:
        cells: list[Text | str] = [Text(one.tensor), Text(one.source), Text(one.target), f"{one.bytes:,.0f}"]
        table.add_row(*cells, *([Text(one.codec)] if coded else []))
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f} ms"

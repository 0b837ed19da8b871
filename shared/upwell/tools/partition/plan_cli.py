"""`upwell partition plan`: the plan of a model or of a cost graph, as JSON and at a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from upwell.shared.errors import ConfigError
from upwell.shared.partition import planner
from upwell.shared.partition.cost_graph import CostGraph, Placement, PlacementPlan
from upwell.shared.partition.cost_graph_file import read_cost_graph
from upwell.shared.partition.plan_file import plan_document
from upwell.tools.partition.advice_options import OBJECTIVES, AdviseOptions
from upwell.tools.terminal import stdout_console

_MOST_NODES = 40
_MOST_TENSORS = 20


def _show(graph: CostGraph, plan: PlacementPlan) -> None:
    """Print where nodes run, what is sent, and the time beside one tier alone and other placements."""
    console = stdout_console()
    console.print(_totals(graph, plan))
    console.print()
    for tier in graph.tiers:
        console.print(Text(f"{tier}: {_nodes(graph, plan.placement, tier)}"))
    if plan.sent:
        console.print()
        console.print(_sends(plan))
    more = len(plan.sent) - _MOST_TENSORS
    if more > 0:
        console.print(f"and {more} more; --json lists them all")


def _totals(graph: CostGraph, plan: PlacementPlan) -> Table:
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
    """Names in the graph's order; if there are many, the first and the last."""
    names = [node.name for node in graph.nodes if placement[node.name] == tier]
    if not names:
        return "nothing"
    if len(graph.nodes) > _MOST_NODES and len(names) > 2:
        return f"{names[0]} … {names[-1]} ({len(names)} nodes)"
    return ", ".join(names)


def _sends(plan: PlacementPlan) -> Table:
    coded = any(one.codec for one in plan.sent)
    titles = [Column("sent", overflow="fold"), Column("from"), Column("to"), Column("bytes", justify="right")]
    table = Table(*titles, *([Column("codec")] if coded else []), box=None, pad_edge=False)
    for one in plan.sent[:_MOST_TENSORS]:
        cells: list[Text | str] = [Text(one.tensor), Text(one.source), Text(one.target), f"{one.bytes:,.0f}"]
        table.add_row(*cells, *([Text(one.codec)] if coded else []))
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f} ms"


_GRAPH = "A cost graph (JSON): the cost of each node on each tier, tensors and links."
_EDGE = "A profile from the device; with --cloud, plans and compares that model."
_UPLINK = "Bandwidth of the uplink, such as 8Mbps; repeat it to give samples of a link that changes."
_RTT = "Round-trip time, such as 40ms."
_DOWNLINK = "Bandwidth of the downlink. Default: that of the uplink."
_SPREAD = "The uplink is at least a SPREAD-th of --uplink nine times in ten; 1 is a steady link."
_SURE = "Plan for the bandwidth that the link reaches with this probability, such as 90%, not for the mean."
_OBJECTIVE = "What to minimize."
_POWER = "For energy: watts of the device while busy, idle, send or receive (busy=5W), joules per byte (byte=2uJ)."
_PRICE = "For cost: the price of a cloud second, a request or a gb sent up, such as gb=4.0."
_WEIGHT = "For weighted: the weight of a second, a joule or a unit of money, such as latency=1."
_PICTURE = "Also compare with sending this picture to the cloud as JPEG, WebP or PNG, measured on this machine."
_SIZE = "Size of the model's input, such as 416x736. Default: a square."
_STRETCH = "Simulate a device that takes X times as long as this machine to encode a picture."
_PLOT = "Draw latency against bandwidth (.png, .svg, .pdf)."


def plan(
    graph: Annotated[Path | None, typer.Option(metavar="FILE", help=_GRAPH)] = None,
    edge: Annotated[Path | None, typer.Option(metavar="FILE", help=_EDGE)] = None,
    cloud: Annotated[Path | None, typer.Option(metavar="FILE", help="A profile from the service.")] = None,
    uplink: Annotated[list[str] | None, typer.Option(metavar="RATE", help=_UPLINK)] = None,
    rtt: Annotated[str | None, typer.Option(metavar="TIME", help=_RTT)] = None,
    downlink: Annotated[str | None, typer.Option(metavar="RATE", help=_DOWNLINK)] = None,
    spread: Annotated[float | None, typer.Option(metavar="SPREAD", help=_SPREAD)] = None,
    sure: Annotated[str | None, typer.Option(metavar="SHARE", help=_SURE)] = None,
    objective: Annotated[str | None, typer.Option(metavar="|".join(OBJECTIVES), help=_OBJECTIVE)] = None,
    power: Annotated[list[str] | None, typer.Option(metavar="KEY=WATTS", help=_POWER)] = None,
    price: Annotated[list[str] | None, typer.Option(metavar="KEY=PRICE", help=_PRICE)] = None,
    weight: Annotated[list[str] | None, typer.Option(metavar="KEY=WEIGHT", help=_WEIGHT)] = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help=_PICTURE)] = None,
    picture_size: Annotated[str | None, typer.Option(metavar="WxH", help=_SIZE)] = None,
    quality: Annotated[int | None, typer.Option(min=1, max=100, help="Quality of JPEG and WebP. Default: 85.")] = None,
    stretch: Annotated[float | None, typer.Option(min=1, max=10_000, metavar="X", help=_STRETCH)] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help=_PLOT)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON and nothing else.")] = False,
) -> None:
    """Find the placement that takes the least time, exactly, and what it gains over one tier alone.

    From a cost graph (--graph), or from two profiles (--edge, --cloud, --uplink, --rtt). With profiles, the device
    alone and the cloud alone, with the input raw or compressed, are shown beside the best cut, each with the
    bandwidths at which it wins.
    """
    optional = {
        "downlink": downlink, "spread": spread, "sure": sure, "objective": objective, "power": power, "price": price,
        "weight": weight, "picture": picture, "picture_size": picture_size, "quality": quality, "stretch": stretch,
        "plot": plot,
    }  # fmt: skip
    given: dict[str, Any] = {name: value for name, value in optional.items() if value is not None}
    if graph is not None:
        needed = {"edge": edge, "cloud": cloud, "uplink": uplink, "rtt": rtt}
        _refuse_beside_graph([*(name for name, value in needed.items() if value is not None), *given])
        _plan_graph(graph, as_json)
        return
    if edge is None or cloud is None or not uplink or rtt is None:
        raise ConfigError.at(None, "expected --graph FILE, or --edge FILE --cloud FILE --uplink RATE --rtt TIME")
    from upwell.tools.partition.plan_advice import advise_on

    advise_on(AdviseOptions(edge, cloud, uplink, rtt, as_json=as_json, **given))


def _refuse_beside_graph(names: Sequence[str]) -> None:
    if names:
        option = "--" + names[0].replace("_", "-")
        raise ConfigError.at(
            None, "applies only to profiles; a cost graph contains everything that its plan depends on", option
        )


def _plan_graph(path: Path, as_json: bool) -> None:
    costs = read_cost_graph(path)
    found = planner.plan(costs)
    if as_json:
        typer.echo(json.dumps(plan_document(found), allow_nan=False))
    else:
        _show(costs, found)

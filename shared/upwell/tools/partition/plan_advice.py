"""`upwell partition plan --edge --cloud`: the best cut of a profiled model, and whether cutting pays at all."""

from __future__ import annotations

import json
from dataclasses import replace

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from upwell.shared.files import write_named
from upwell.shared.partition.bandwidth import BandwidthSweep, envelope
from upwell.shared.partition.cost_graph import CostGraph, Placement
from upwell.shared.partition.objectives import Objective
from upwell.shared.partition.split_advice import Advice, Encoded, Option, OptionFactory, advise
from upwell.shared.partition.tier_profile import CLOUD, EDGE, combine, load_profile, measured_cuts
from upwell.tools.partition.advice_document import AdviceOutcome, amount, between, document, notes, rate, sentences
from upwell.tools.partition.advice_options import (
    AdviseOptions,
    check_together,
    inverse_of,
    link_of,
    objective_of,
    picture_size_of,
)
from upwell.tools.partition.picture_costs import QUALITY, measure
from upwell.tools.plot_style import check_plot
from upwell.tools.terminal import stdout_console


def advise_on(options: AdviseOptions) -> None:
    """Plan, compare, print; draw if requested. Raises `ConfigError`, and `NoPlan` if nothing can run."""
    check_together(options)
    check_plot(options.plot)
    outcome, factory = _found(options)
    if options.plot is not None:
        _draw(options, outcome, factory)
    if options.as_json:
        typer.echo(json.dumps(document(outcome).model_dump(mode="json", by_alias=True), allow_nan=False))
    else:
        _show(stdout_console(), outcome)
        if options.plot is not None:
            typer.echo(f"wrote {options.plot}")


def _found(options: AdviseOptions) -> tuple[AdviceOutcome, OptionFactory]:
    inverse = inverse_of(options)
    link, symmetric = link_of(options, inverse)
    objective = objective_of(options)
    edge, cloud = load_profile(options.edge), load_profile(options.cloud)
    graph = combine(edge, cloud, link)
    sweep = BandwidthSweep(graph, objective, symmetric=symmetric)
    from upwell.shared.partition.planner import Cutter  # needs scipy, which an invalid file should not require

    cutter = Cutter(sweep.weighed)
    pieces = envelope(sweep, lambda at: cutter.solve(at.links))
    factory = OptionFactory(sweep, inverse, measured_cuts(edge, cloud))
    encoded: list[Encoded] = []
    if options.picture is not None:
        size = picture_size_of(options)
        encoded += measure(options.picture, edge, size, options.quality or QUALITY, options.stretch)
    advice = advise(factory, pieces, _best_cut(sweep.at(inverse)), encoded)
    plan = factory.option(cutter.solve(sweep.at(inverse).links))
    picture = "" if options.picture is None else options.picture.name
    return AdviceOutcome(
        edge, cloud, graph, objective, symmetric, pieces, plan, advice, picture, options.stretch
    ), factory


def _best_cut(graph: CostGraph) -> Placement | None:
    """The best placement with nodes on both sides; None if there is none."""
    from upwell.shared.partition.planner import Cutter, NoPlan

    try:
        return Cutter(replace(graph, non_empty=(EDGE, CLOUD))).solve()
    except NoPlan:
        return None


def _draw(options: AdviseOptions, outcome: AdviceOutcome, factory: OptionFactory) -> None:
    from upwell.tools.partition.advice_plot import draw

    if options.plot is None:
        return
    named = {option.name for option in outcome.advice.options}
    measured = [option for option in factory.measured_cuts() if option.name not in named]
    simulated = " (simulated device)" if outcome.edge.machine.simulated else ""
    title = f"{outcome.edge.model.name}: {outcome.edge.machine.name}{simulated} and {outcome.cloud.machine.name}"
    data = draw(outcome.advice, measured, outcome.objective, title, options.plot.suffix)
    write_named(options.plot, data, "--plot")


def _show(console: Console, outcome: AdviceOutcome) -> None:
    edge, cloud, advice = outcome.edge, outcome.cloud, outcome.advice
    console.print(Text(f"{edge.model.name}: {edge.machine.name} and {cloud.machine.name}"))
    link = f"uplink {rate(1 / advice.inverse)}, round trip {outcome.graph.links[0].fixed_s * 1e3:g} ms"
    console.print(Text(f"{link}, minimizing {outcome.objective.name}"))
    console.print()
    console.print(_table(advice, outcome.objective))
    console.print()
    for sentence in (*sentences(outcome), *notes(outcome)):
        console.print(Text(sentence))


def _table(advice: Advice, objective: Objective) -> Table:
    titles = ["sends kB", "edge ms", "cloud ms", "total ms", *([] if objective.name == "latency" else [objective.name])]
    columns = [Column(title, justify="right", no_wrap=True) for title in titles]
    table = Table(Column("", no_wrap=True), *columns, Column("best"), box=None, pad_edge=False)
    for option in advice.options:
        table.add_row(*_row(advice, option, objective))
    return table


def _row(advice: Advice, option: Option, objective: Objective) -> list[str]:
    where = advice.range_of(option)
    value = [] if objective.name == "latency" else [amount(option.value.at(advice.inverse), objective)]
    total_s = option.seconds.at(advice.inverse)
    return [
        option.name if option.is_measured else f"{option.name} (interpolated)",
        *(_thousand(number) for number in (option.bytes / 1e6, option.edge_s, option.cloud_s, total_s)),
        *value,
        "nowhere" if where is None else between(where),
    ]


def _thousand(number: float) -> str:
    return f"{number * 1e3:.1f}" if number else "–"

"""`upwell policy simulate`: policies on a request log over a link, with a report at a terminal or as JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.files import read_file, write_named
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.simulation.link_capacity import MOST_BITS_PER_S, Capacity, constant, parse_trace
from upwell.shared.routing.simulation.logged_requests import prepare
from upwell.shared.routing.simulation.simulation_report import SimulatedOutcome, SimulationReport
from upwell.shared.routing.simulation.strategies import (
    Scene,
    cloud_only,
    edge_only,
    fixed,
    oracle,
    random_share,
    routed,
    thresholds,
    without_supports,
)
from upwell.shared.units import LATEST_YEAR, parse_bits_per_second, parse_seconds
from upwell.tools.plot_style import check_plot
from upwell.tools.policy.request_log_reader import read_log
from upwell.tools.terminal import (
    AsJson,
    PolicyArgument,
    key_values,
    parsed,
    plain,
    progress,
    share,
    stderr_console,
    stdout_console,
)

_TITLES: Mapping[str, str] = {
    "policy": "policy",
    "compare": "other",
    "edge_only": "edge only",
    "cloud_only": "cloud only",
    "random_share": "random",
    "oracle": "oracle",
}


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.2%}"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value * 1e3:.0f} ms"


_ROWS: Mapping[str, Callable[[SimulationReport], str]] = {
    "requests": lambda report: str(report.requests),
    "answered": lambda report: str(report.answered),
    "in time": lambda report: _share(report.deadline_hit_rate),
    "right and in time": lambda report: _share(report.accuracy),
    "median": lambda report: _ms(report.p50_s),
    "95th percentile": lambda report: _ms(report.p95_s),
    "99th percentile": lambda report: _ms(report.p99_s),
    "sent up": lambda report: _share(report.cloud_share),
    "bytes up": lambda report: f"{report.bytes_up / 1e6:.1f} MB",
    "cost": lambda report: f"{report.cost:.4g}",
    "energy": lambda report: f"{report.energy_j:.4g} J",
}


def show(reports: Mapping[str, SimulationReport], swept: Sequence[Mapping[str, Any]] | None, plot: Path | None) -> None:
    """Print the runs side by side, the reasons of the policies, and the sweep."""
    console = stdout_console()
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in reports:
        table.add_column(_TITLES[name], justify="right", no_wrap=True)
    for title, cell in _ROWS.items():
        table.add_row(title, *map(cell, reports.values()))
    console.print(table)
    for name in ("policy", "compare"):
        if name in reports:
            reasons = ", ".join(f"{reason} {count}" for reason, count in reports[name].reasons.items())
            console.print(Text(f"\nreasons ({_TITLES[name]}): {reasons}"))
    if swept is not None:
        console.print()
        console.print(_sweep(swept))
    if plot is not None:
        console.print(Text(f"\nwrote {plot}"))


def _sweep(swept: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("fixed threshold", "right and in time", "in time", "sent up", box=None, pad_edge=False)
    for one in swept:
        shares = (_share(one[key]) for key in ("accuracy", "deadline_hit_rate", "cloud_share"))
        table.add_row(f"{one['threshold']:.4g}", *shares)
    return table


START = "1970-01-01T00:00"
MAX_TRACE_BYTES = 64 << 20
_TRACE = "The uplink's capacity: a mahimahi trace, or CSV rows of second and Mbps; it repeats at its end."
_START = "The time of day at which t_s is 0, for rules with hours: 2024-05-01T08:00, in UTC unless it says otherwise."
_SWEEP = "Also try ten fixed thresholds of the policy's measure, without the prediction of the link."


FleetShares = Annotated[
    list[str] | None,
    typer.Option(
        "--fleet-share", metavar="MODEL=SHARE", help="A model's share of a fleet's budget, such as digits=20%."
    ),
]


def simulate(
    policy: PolicyArgument,
    requests: Annotated[Path, typer.Option(metavar="LOG", help="The request log (JSON lines).")],
    rtt: Annotated[str, typer.Option(help="Round trip of the link, such as 60ms; half of it each way.")],
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help=_TRACE)] = None,
    uplink: Annotated[str | None, typer.Option(metavar="RATE", help="A constant rate instead, such as 20Mbps.")] = None,
    compare: Annotated[Path | None, typer.Option(metavar="OTHER", help="Another policy to compare.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the policy's run (.png, .svg, .pdf).")] = None,
    fleet_share: FleetShares = None,
    sweep: Annotated[bool, typer.Option("--sweep", help=_SWEEP)] = False,
    seed: Annotated[int, typer.Option(min=0, help="For the requests that random_share sends up.")] = 0,
    start: Annotated[str, typer.Option(help=_START)] = START,
    as_json: AsJson = False,
) -> None:
    """Replay a request log with the agent's own router over a link.

    Compares the policy with the device alone, the cloud alone, a random choice of as many requests, and an oracle
    that knows which answers are right and what the link will carry.
    """
    rules, other = load_yaml(policy, Policy), None if compare is None else load_yaml(compare, Policy)
    check_plot(plot)
    errors = stderr_console()
    with errors.status("reading the log"):
        scene = with_fleet_shares(read_scene(requests, trace, uplink, rtt, start), fleet_share)
    for path, one in ((policy, rules), (compare, other)):
        if one is not None and (count := without_supports(one, scene.requests)):
            text = f"{path}: {count} lines have `chances` without the `supports` that it weighs, so they count as hard"
            errors.print(plain(text))
    with errors.status("simulating the policy"):
        run = routed(rules, scene)
    reports = _reports(rules, other, scene, run, seed)
    swept = _swept(rules, scene) if sweep else None
    if plot is not None:
        from upwell.tools.policy.policy_plots import draw_simulation

        write_named(plot, draw_simulation(scene, run, plot.suffix), "--plot")
    if as_json:
        document: dict[str, Any] = {name: asdict(report) for name, report in reports.items()}
        typer.echo(json.dumps(document if swept is None else {**document, "sweep": swept}, indent=2, allow_nan=False))
    else:
        show(reports, swept, plot)


def _reports(
    policy: Policy, other: Policy | None, scene: Scene, run: Sequence[SimulatedOutcome], seed: int
) -> dict[str, SimulationReport]:
    report = SimulationReport.of(run)
    chance = random.Random(seed)  # noqa: S311  chance that can be repeated, not a secret
    draws = [chance.random() for _ in scene.requests]
    runs = {
        "compare": lambda: [] if other is None else routed(other, scene),
        "edge_only": lambda: edge_only(policy, scene),
        "cloud_only": lambda: cloud_only(policy, scene),
        "random_share": lambda: random_share(policy, scene, report.cloud_share, draws),
        "oracle": lambda: oracle(policy, scene),
    }
    asked = [name for name in runs if name != "compare" or other is not None]
    return {"policy": report, **{name: SimulationReport.of(runs[name]()) for name in _tracked(asked, "simulating")}}


def _swept(policy: Policy, scene: Scene) -> list[dict[str, Any]]:
    try:
        settings = thresholds(policy, scene.requests)
    except ValueError as error:
        raise ConfigError.at(None, str(error), "--sweep") from None
    return [
        {"threshold": hard.threshold, **asdict(SimulationReport.of(fixed(policy, scene, hard)))}
        for hard in _tracked(settings, "sweeping")
    ]


def _tracked(work: Sequence[Any], what: str) -> Iterator[Any]:
    with progress() as bar:
        yield from bar.track(work, description=what)


def read_scene(requests: Path, trace: Path | None, uplink: str | None, rtt: str, start: str) -> Scene:
    """The requests of a log over a link, from a command's options. Raises `ConfigError`."""
    if (trace is None) == (uplink is None):
        raise ConfigError.at(None, "give either --trace or --uplink")
    capacity = _read_trace(trace) if trace is not None else constant(_bits_per_s(uplink or ""))
    rtt_s = parsed("--rtt", rtt, parse_seconds)
    if rtt_s > 3600:
        raise ConfigError.at(None, "expected at most 1h", "--rtt")
    start_s = _wall_time_s(start)
    try:
        return Scene(prepare(read_log(requests), start_s), capacity, rtt_s)
    except ValueError as error:
        raise ConfigError.at(requests, str(error)) from None


def with_fleet_shares(scene: Scene, texts: Sequence[str] | None) -> Scene:
    """The scene on a device of a fleet that shares a budget. Raises `ConfigError`."""
    shares = {model: share("--fleet-share", text) for model, text in key_values("--fleet-share", texts).items()}
    models = {one.line.model for one in scene.requests}
    for model in shares.keys() - models:
        known = ", ".join(sorted(models))
        raise ConfigError.at(None, f"the log has no request for {model!r}; expected one of {known}", "--fleet-share")
    return replace(scene, fleet_shares=shares)


def _read_trace(path: Path) -> Capacity:
    data = read_file(path, "the trace", MAX_TRACE_BYTES)
    try:
        return parse_trace(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ConfigError.at(path, "not UTF-8 text; expected a mahimahi trace or CSV") from None
    except ValueError as error:
        raise ConfigError.at(path, str(error)) from None


def _bits_per_s(text: str) -> float:
    bits_per_s = parsed("--uplink", text, parse_bits_per_second)
    if not 0 < bits_per_s <= MOST_BITS_PER_S:
        raise ConfigError.at(None, f"expected more than 0 and at most {MOST_BITS_PER_S / 1e9:g}Gbps", "--uplink")
    return bits_per_s


def _wall_time_s(text: str) -> float:
    try:
        start = datetime.fromisoformat(text.replace("Z", "+00:00"))
        if not 1970 <= start.year < LATEST_YEAR:
            raise ValueError
        return (start if start.tzinfo else start.replace(tzinfo=timezone.utc)).timestamp()
    except ValueError:
        expected = f"expected a date and time such as 2024-05-01T08:00 or 2024-05-01T08:00+02:00, got {text!r}"
        raise ConfigError.at(None, expected, "--start") from None

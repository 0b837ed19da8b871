"""`upwell fleet budget set | list | show | remove`: limits what devices may offload together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import typer

from upwell.shared.errors import ConfigError
from upwell.shared.routing.calibration.logged_hardness import measured
from upwell.shared.routing.calibration.pair_calibration import loss_of
from upwell.shared.routing.calibration.threshold_choice import Sample, operating_points
from upwell.shared.routing.hardness import RISING, Measure
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.units import bytes_as_written, parse_bytes, parse_rate
from upwell.tools.fleet.fleet_client import (
    At,
    Ca,
    FleetClient,
    TokenFile,
    ago,
    print_found,
    print_json,
    segment,
    shares_text,
)
from upwell.tools.policy.request_log_reader import read_log
from upwell.tools.terminal import AsJson, key_values, parsed, percent, plain, print_table, share, stdout_console

budget = typer.Typer(no_args_is_help=True, help="Budgets shared by devices, divided by what each gains.")
_Name = Annotated[str, typer.Argument(metavar="BUDGET", help="The budget's name.")]


@budget.command("set")
def set_budget(
    name: _Name,
    at: At,
    token_file: TokenFile,
    ca: Ca = None,
    group: Annotated[str | None, typer.Option(help="The devices of this group.")] = None,
    where: Annotated[str | None, typer.Option(help="The devices for which a CEL expression holds.")] = None,
    cloud_share: Annotated[
        str | None, typer.Option(help="The offloaded share of all their requests, such as 20%.")
    ] = None,
    uplink: Annotated[str | None, typer.Option(help="Bytes sent up, such as 5GB/month (UTC).")] = None,
    max_risk: Annotated[
        str | None, typer.Option(help="The share of all their requests that may be kept and wrong, such as 2%.")
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(help="MODEL=FILE: a request log for models whose devices have no calibration."),
    ] = None,
    measure: Annotated[str, typer.Option(help="The hardness measure in these logs.")] = "margin",
) -> None:
    """Set or change a budget; devices get their shares with their next polls."""
    if (group is None) == (where is None):
        raise ConfigError.at(None, "expected one of --group and --where")
    body: dict[str, Any] = {"group": group} if group is not None else {"where": where}
    goals = {"cloud_share": cloud_share, "uplink": uplink, "max_risk": max_risk}
    given = {key: text for key, text in goals.items() if text is not None}
    if len(given) != 1:
        raise ConfigError.at(None, "expected one of --cloud-share 20%, --uplink 5GB/month and --max-risk 2%")
    ((key, text),) = given.items()
    option = f"--{key.replace('_', '-')}"
    if key == "uplink":
        size_bytes, period = parsed(option, text, lambda one: parse_rate(one, parse_bytes, "5GB/month"))
        body["uplink"] = {"size_bytes": size_bytes, "period": period}
    else:
        body[key] = share(option, text)
    if measure not in get_args(Measure):
        raise ConfigError.at(None, f"expected one of {', '.join(get_args(Measure))}, got {measure!r}", "--measure")
    body["curves"] = {model: _curve(model, Path(path), measure) for model, path in key_values("--log", log).items()}
    FleetClient(at, ca, token_file).call("PUT", f"/budgets/{segment(name)}", body)


def _curve(model: str, path: Path, measure: Any) -> Sequence[Sequence[float]]:
    """(share, risk) points of a model, from a log of its requests. Raises `ConfigError`."""
    lines: list[LogLine] = [line for line in read_log(path) if line.model == model]
    if not lines:
        raise ConfigError.at(path, f"has no request of {model!r}", "--log")
    values = measured(lines, measure)
    scores = np.where(np.isnan(values), np.inf, values if measure in RISING else -values)
    points = operating_points(Sample(scores, np.array([loss_of(line) for line in lines], np.float64)))
    if not points:
        raise ConfigError.at(path, f"no line of {model!r} says whether both answers are correct", "--log")
    return [[round(up, 4), round(risk, 4)] for up, risk in points]


@budget.command("list")
def list_budgets(at: At, token_file: TokenFile, ca: Ca = None, as_json: AsJson = False) -> None:
    """List the budgets, and what their shares amount to."""
    found = FleetClient(at, ca, token_file).call("GET", "/budgets")
    headings = ("name", "devices", "for", "goal", "comes to", "shared out")
    print_found(found, as_json, headings, map(_row, found["budgets"]))


def _row(one: Mapping[str, Any]) -> Sequence[object]:
    result, goal = one["result"] or {}, one["goal"]
    if goal["quantity"] == "uplink":
        asked = f"uplink {bytes_as_written(int(goal['amount']))}/{goal['period']}"
        comes = f"{result.get('bytes_per_s', 0.0):.0f} B/s, {one['spent_bytes']} B sent"
    else:
        asked = f"{goal['quantity']} {percent(goal['amount'])}"
        comes = f"{percent(result.get('cloud_share', 0.0))} up, risk {percent(result.get('risk', 0.0))}"
    if result and not result["is_met"]:
        comes += ", out of reach"
    return (
        one["name"], result.get("devices", ""), one["group"] or one["expression"], asked, comes if result else "",
        ago(one["solved_unix_s"]),
    )  # fmt: skip


@budget.command("show")
def show_budget(name: _Name, at: At, token_file: TokenFile, ca: Ca = None, as_json: AsJson = False) -> None:
    """Show a budget and the share of each device."""
    found = FleetClient(at, ca, token_file).call("GET", f"/budgets/{segment(name)}")
    if as_json:
        print_json(found)
        return
    _, _, chosen, asked, comes, when = _row(found)
    stdout_console().print(plain(f"{name} for {chosen}: {asked}; {comes or 'not shared yet'} ({when})"))
    print_table(
        ("device", "name", "share"), ((one["device"], one["name"], shares_text(one)) for one in found["devices"])
    )


@budget.command("remove")
def remove_budget(name: _Name, at: At, token_file: TokenFile, ca: Ca = None) -> None:
    """Remove a budget: its devices follow their policies."""
    FleetClient(at, ca, token_file).call("DELETE", f"/budgets/{segment(name)}")

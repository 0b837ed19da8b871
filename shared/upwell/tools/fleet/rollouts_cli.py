"""`upwell fleet rollout | rollouts | pause | resume | back` and `upwell fleet shadow begin | list | log | end`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from upwell.shared.errors import ConfigError
from upwell.shared.files import write_named
from upwell.shared.units import count_of
from upwell.tools.fleet.fleet_client import (
    At,
    Ca,
    CallFailed,
    FleetClient,
    TokenFile,
    ago,
    print_found,
    print_json,
    segment,
)
from upwell.tools.terminal import AsJson, plain, print_error, print_table, progress, stdout_console

RolloutArgument = Annotated[
    str, typer.Argument(metavar="ROLLOUT", help="The roll-out's id; see `upwell fleet rollouts`.")
]

FOLLOW_S = 2.0
"""How often `--follow` polls."""

_OVER = ("finished", "halted")


def rollout(
    release: Annotated[int, typer.Argument(help="The sequence number of the release.", min=0)],
    at: At,
    token_file: TokenFile,
    ca: Ca = None,
    group: Annotated[str | None, typer.Option(help="The devices of this group.")] = None,
    where: Annotated[str | None, typer.Option(help="The devices for which a CEL expression holds.")] = None,
    wave: Annotated[
        list[str] | None, typer.Option(help="A wave: 1, 5% or site=lab; one option each. [default: 1, 10%, 100%]")
    ] = None,
    window: Annotated[
        str | None, typer.Option(help="Hours in the device's time zone when it may change, such as 22:00-06:00.")
    ] = None,
    days: Annotated[str | None, typer.Option(help="Days on which these hours begin, such as mon,tue.")] = None,
    requests: Annotated[int | None, typer.Option(help="Number of requests that a device must serve to pass.")] = None,
    audits: Annotated[
        int | None, typer.Option(help="Number of audits to pass, if the device was audited before.")
    ] = None,
    patience_s: Annotated[float | None, typer.Option(help="Time limit of a device after the offer.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for its end; exit with 1 if it is halted.")] = False,
    as_json: AsJson = False,
) -> None:
    """Roll a release out in waves. A broken bound halts it, and devices get their former release back."""
    if (group is None) == (where is None):
        raise ConfigError.at(None, "expected one of --group and --where")
    if days is not None and window is None:
        raise ConfigError.at(None, "--days needs --window")
    gate = {"requests": requests, "audits": audits, "patience_s": patience_s}
    body: dict[str, Any] = {"release": release, "gate": {name: one for name, one in gate.items() if one is not None}}
    body |= {name: one for name, one in (("group", group), ("where", where), ("waves", wave)) if one}
    if window is not None:
        body["window"] = {"hours": window, "days": days.split(",") if days else []}
    client = FleetClient(at, ca, token_file)
    rollout_id = client.call("POST", "/rollouts", body)["id"]
    if wave is not None and len(wave) == 1:
        print_error("warning: one wave has no control group, so an hour that is bad for all devices can halt it")
    if not follow and as_json:
        print_json({"id": rollout_id})
    elif not as_json:
        typer.echo(f"roll-out {rollout_id} has started; see `upwell fleet rollouts {rollout_id}`")
    if not follow:
        return
    found = _until_over(client, rollout_id)
    _print(found, as_json)
    if found["phase"] == "halted":
        raise typer.Exit(1)


def _until_over(client: FleetClient, rollout_id: str) -> Mapping[str, Any]:
    with progress() as bar:
        task = bar.add_task(f"roll-out {rollout_id}", total=1)
        while True:
            found: Mapping[str, Any] = client.get_patiently(f"/rollouts/{segment(rollout_id)}")
            done = sum(one["stage"] in ("passed", "failed", "left") for one in found["devices"])
            bar.update(task, total=len(found["devices"]), completed=done)
            if found["phase"] in _OVER:
                return found
            time.sleep(FOLLOW_S)


def rollouts(
    at: At,
    token_file: TokenFile,
    rollout_id: Annotated[str | None, typer.Argument(metavar="[ROLLOUT]", help="Show one roll-out in detail.")] = None,
    ca: Ca = None,
    as_json: AsJson = False,
) -> None:
    """List the roll-outs, or show one: its waves, bounds and devices."""
    client = FleetClient(at, ca, token_file)
    if rollout_id is not None:
        _print(client.call("GET", f"/rollouts/{segment(rollout_id)}"), as_json)
        return
    found = client.call("GET", "/rollouts")
    rows = (
        (one["id"], one["release"], one["group"] or one["expression"], one["phase"], one["wave"] + 1,
         ago(one["created_unix_s"]), one["created_by"], one["halted_by"])
        for one in found["rollouts"]
    )  # fmt: skip
    print_found(found, as_json, ("id", "release", "devices", "phase", "wave", "begun", "by", "halted by"), rows)


def _print(found: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    console = stdout_console()
    halted = f": {found['halted_by']}" if found["halted_by"] else ""
    console.print(plain(f"roll-out {found['id']} of release {found['release']}, {found['phase']}{halted}"))
    bounds: list[tuple[object, Any]] = [("all", found["failed"])]
    for number, wave in enumerate(found["waves"], 1):
        stages = ", ".join(f"{count} {stage}" for stage, count in sorted(wave["stages"].items())) or "no device"
        console.print(plain(f"wave {number} ({wave['text']}): {stages}"))
        bounds += [(number, one) for one in wave["bounds"]]
    rows = (
        (wave, one["signal"], f"{one['bad']} of {one['total']}", f"{one['reference']:.1%}", f"{one['allowed']:.1%}",
         f"{one['evidence']:.3g}", f"{one['threshold']:.0f}")
        for wave, one in bounds
    )  # fmt: skip
    print_table(("wave", "bound", "bad", "before", "allowed", "evidence", "halts at"), rows)
    names = ("name", "wave", "stage", "requests", "former", "problem")
    print_table(names, ([{**one, "wave": one["wave"] + 1}[name] for name in names] for one in found["devices"]))


def pause(rollout_id: RolloutArgument, at: At, token_file: TokenFile, ca: Ca = None) -> None:
    """Stop offering the release for now."""
    FleetClient(at, ca, token_file).call("POST", f"/rollouts/{segment(rollout_id)}/pause")


def resume(rollout_id: RolloutArgument, at: At, token_file: TokenFile, ca: Ca = None) -> None:
    """Offer the release again."""
    FleetClient(at, ca, token_file).call("POST", f"/rollouts/{segment(rollout_id)}/resume")


def back(rollout_id: RolloutArgument, at: At, token_file: TokenFile, ca: Ca = None) -> None:
    """Halt a roll-out, and offer every device its former release again."""
    FleetClient(at, ca, token_file).call("POST", f"/rollouts/{segment(rollout_id)}/back")


shadow = typer.Typer(no_args_is_help=True, help="Shadow releases, for calibration before a roll-out.")
_Release = Annotated[int, typer.Argument(metavar="RELEASE", help="The sequence number of the release.", min=1)]


@shadow.command("begin")
def begin_shadow(
    release: _Release,
    at: At,
    token_file: TokenFile,
    ca: Ca = None,
    group: Annotated[str | None, typer.Option(help="Devices of this group.")] = None,
    where: Annotated[str | None, typer.Option(help="Devices for which a CEL expression holds.")] = None,
    devices: Annotated[int, typer.Option(min=1, help="Maximum number of devices.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Have devices run a shadow release: it answers the same requests, and its answers go to nobody."""
    if (group is None) == (where is None):
        raise ConfigError.at(None, "expected one of --group and --where")
    body: dict[str, Any] = {"release": release, "devices": devices}
    body |= {"where": where} if group is None else {"group": group}
    found = FleetClient(at, ca, token_file).call("POST", "/shadows", body)
    if as_json:
        print_json(found)
    else:
        typer.echo(f"release {release} will run in shadow on {len(found['devices'])} devices")


@shadow.command("list")
def list_shadows(at: At, token_file: TokenFile, ca: Ca = None, as_json: AsJson = False) -> None:
    """List the shadow releases, and the number of lines of each."""
    found = FleetClient(at, ca, token_file).call("GET", "/shadows")
    names = ("release", "devices", "lines")
    print_found(found, as_json, names, ([one[name] for name in names] for one in found["shadows"]))


@shadow.command("log")
def write_log(
    release: _Release,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The request log to write, for `policy calibrate`.")],
    at: At,
    token_file: TokenFile,
    ca: Ca = None,
) -> None:
    """Write a shadow release's answers as a request log. Exit code 1 if there are none yet."""
    client, after, lines = FleetClient(at, ca, token_file), 0, list[str]()
    while True:
        page = client.call("GET", f"/shadows/{release}/lines", after=after)
        lines += [json.dumps(one) for one in page["lines"]]
        after = page["next"]
        if not after:
            break
    if not lines:
        raise CallFailed(f"no device has reported on release {release} yet; see `upwell fleet tail`")
    write_named(out, "".join(f"{one}\n" for one in lines).encode(), "--out")
    typer.echo(f"{count_of(len(lines), 'request')} written to {out}")


@shadow.command("end")
def end_shadow(release: _Release, at: At, token_file: TokenFile, ca: Ca = None) -> None:
    """Stop a shadow release; its lines are kept for thirty days."""
    FleetClient(at, ca, token_file).call("DELETE", f"/shadows/{release}")

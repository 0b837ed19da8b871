"""`upwell fleet shadow begin | list | log | end`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from upwell.shared.errors import ConfigError
from upwell.shared.files import write_named
from upwell.tools.fleet.fleet_client import At, Ca, CallFailed, FleetClient, TokenFile, print_json, print_table
from upwell.tools.terminal import AsJson

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
    if as_json:
        print_json(found)
        return
    names = ("release", "devices", "lines")
    print_table(names, ([one[name] for name in names] for one in found["shadows"]))


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
    typer.echo(f"{len(lines)} requests written to {out}")


@shadow.command("end")
def end_shadow(release: _Release, at: At, token_file: TokenFile, ca: Ca = None) -> None:
    """Stop a shadow release; its lines are kept for thirty days."""
    FleetClient(at, ca, token_file).call("DELETE", f"/shadows/{release}")

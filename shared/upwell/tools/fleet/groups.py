"""`upwell fleet group list | put | drop`."""

from __future__ import annotations

from typing import Annotated

import typer

from upwell.tools.fleet.fleet_client import At, Ca, FleetClient, TokenFile, print_json, print_table, segment
from upwell.tools.terminal import AsJson

group = typer.Typer(no_args_is_help=True, help="Groups of devices, by an expression over their labels.")
_Name = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")]
_EXPRESSION = "A CEL expression over labels, name, version, os and arch, such as 'labels.site == \"hamburg\"'."


@group.command("list")
def list_groups(at: At, token_file: TokenFile, ca: Ca = None, as_json: AsJson = False) -> None:
    """List the groups."""
    found = FleetClient(at, ca, token_file).call("GET", "/groups")
    if as_json:
        print_json(found)
        return
    names = ("name", "devices", "release", "expression")
    print_table(names, ([one[name] for name in names] for one in found["groups"]))


@group.command("put")
def put_group(
    name: _Name,
    expression: Annotated[str, typer.Argument(help=_EXPRESSION)],
    at: At,
    token_file: TokenFile,
    ca: Ca = None,
) -> None:
    """Create a group, or change its expression."""
    FleetClient(at, ca, token_file).call("PUT", f"/groups/{segment(name)}", {"expression": expression})


@group.command("drop")
def drop_group(name: _Name, at: At, token_file: TokenFile, ca: Ca = None) -> None:
    """Delete a group; its devices stay."""
    FleetClient(at, ca, token_file).call("DELETE", f"/groups/{segment(name)}")

"""`upwell fleet user ...`, `upwell fleet token ...` and `upwell fleet audit`."""

from __future__ import annotations

import getpass
import time
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError, ExtraMissing
from upwell.shared.units import parse_seconds
from upwell.tools.fleet.fleet_client import (
    At,
    Ca,
    FleetClient,
    TokenFile,
    ago,
    print_found,
    print_json,
    segment,
)
from upwell.tools.terminal import AsJson, key_values, parsed, plain, stdout_console

user = typer.Typer(no_args_is_help=True, help="Users of the fleet service.")
token = typer.Typer(no_args_is_help=True, help="One-time tokens with which devices enrol.")
_Name = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]


class RoleName(str, Enum):
    """The role of a user."""

    VIEWER = "viewer"
    OPERATOR = "operator"


@user.command("add")
def add_user(
    name: _Name,
    at: Annotated[str | None, typer.Option("--at", envvar="UPWELL_FLEET", help="The service.")] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", envvar="UPWELL_FLEET_TOKEN_FILE", help="A file with your token.")
    ] = None,
    ca: Ca = None,
    role: Annotated[
        RoleName, typer.Option(help="A viewer can read; an operator can also make changes.")
    ] = RoleName.VIEWER,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="The fleet.yaml, to write to its database directly, for the first user."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add a user; prints their token, only once."""
    if config is not None:
        made = _add_locally(config, name, role)
    elif at is None or token_file is None:
        raise ConfigError.at(None, "expected --at with --token-file, or --config where the service runs", "user add")
    else:
        made = FleetClient(at, ca, token_file).call("POST", f"/users/{segment(name)}", {"role": role.value})["token"]
    if as_json:
        print_json({"name": name, "role": role.value, "token": made})
    else:
        stdout_console().print(plain(made))


def _add_locally(config: Path, name: str, role: RoleName) -> str:
    """No token is needed: whoever can write the database may do anything to it."""
    from upwell.fleet.config import FleetConfig

    with ExtraMissing.on_import("fleet", "upwell fleet user add --config needs PACKAGE"):
        from upwell.fleet.service.application import open_fleet
        from upwell.fleet.users import Actor, add_user
    fleet = open_fleet(load_yaml(config, FleetConfig).fleet)
    try:
        with fleet.state.database.writing() as connection:
            actor = Actor(f"{getpass.getuser()} at the service"[:100], time.time())
            return add_user(connection, actor, name, role.value)
    finally:
        fleet.close()


@user.command("list")
def list_users(at: At, token_file: TokenFile, ca: Ca = None, as_json: AsJson = False) -> None:
    """List the users."""
    found = FleetClient(at, ca, token_file).call("GET", "/users")
    rows = ((one["name"], one["role"], ago(one["created_unix_s"])) for one in found["users"])
    print_found(found, as_json, ("name", "role", "added"), rows)


@user.command("remove")
def remove_user(name: _Name, at: At, token_file: TokenFile, ca: Ca = None) -> None:
    """Remove a user."""
    FleetClient(at, ca, token_file).call("DELETE", f"/users/{segment(name)}")


@token.command("add")
def add_token(
    at: At,
    token_file: TokenFile,
    ca: Ca = None,
    label: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for the device; may be repeated.")] = None,
    valid: Annotated[str, typer.Option(help="How long it is valid.")] = "24h",
    as_json: AsJson = False,
) -> None:
    """Create a token that enrols one device; prints it, only once."""
    body = {"labels": key_values("--label", label), "valid_s": parsed("--valid", valid, parse_seconds)}
    made = FleetClient(at, ca, token_file).call("POST", "/tokens", body)
    if as_json:
        print_json(made)
    else:
        stdout_console().print(plain(made["token"]))


@token.command("list")
def list_tokens(at: At, token_file: TokenFile, ca: Ca = None, as_json: AsJson = False) -> None:
    """List the tokens without their secrets."""
    found = FleetClient(at, ca, token_file).call("GET", "/tokens")
    now = time.time()
    rows = (
        (one["id"], one["created_by"], ago(one["created_unix_s"]),
         "used" if one["used_unix_s"] else "over" if one["expires_unix_s"] < now else "unused")
        for one in found["tokens"]
    )  # fmt: skip
    print_found(found, as_json, ("id", "made by", "made", "state"), rows)


@token.command("drop")
def drop_token(
    id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as shown by `list`.")],
    at: At,
    token_file: TokenFile,
    ca: Ca = None,
) -> None:
    """Revoke an unused token."""
    FleetClient(at, ca, token_file).call("DELETE", f"/tokens/{segment(id)}")


def audit(at: At, token_file: TokenFile, ca: Ca = None, as_json: AsJson = False) -> None:
    """List what users did: who, when, what."""
    client, found, after = FleetClient(at, ca, token_file), [], 0
    while page := client.call("GET", "/audit", after=after, limit=1000)["entries"]:
        found += page
        after = page[-1]["id"]
    rows = (
        (datetime.fromtimestamp(one["at_unix_s"], timezone.utc).isoformat(" ", "seconds"), one["who"], one["action"],
         one["subject"], " ".join(f"{name}={value}" for name, value in one["details"].items()))
        for one in found
    )  # fmt: skip
    print_found({"entries": found}, as_json, ("when", "who", "did", "to", "details"), rows)

"""`upwell fleet devices | show | label | revoke | assign | explain | tail`, and `fleet group list | put | drop`."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Annotated, Any

import typer

from upwell.shared.errors import ConfigError
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
    shares_text,
)
from upwell.tools.terminal import AsJson, key_values, parsed, plain, progress, stdout_console

DeviceArgument = Annotated[str, typer.Argument(metavar="DEVICE", help="The device's id, or its name if unique.")]

TAIL_S = 2.0
"""How often `tail` polls."""

_ANSWER_S = 0.5


def devices(
    at: At,
    token_file: TokenFile,
    ca: Ca = None,
    group: Annotated[str | None, typer.Option(help="Only devices of this group.")] = None,
    where: Annotated[str | None, typer.Option(help="Only devices for which a CEL expression holds.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the devices: version, release, health, time of the last poll."""
    if group is not None and where is not None:
        raise ConfigError.at(None, "expected one of --group and --where, got both")
    found = sorted(FleetClient(at, ca, token_file).devices(group=group, where=where), key=_by_name)
    headings = ("id", "name", "version", "release", "wanted", "health", "share", "seen", "labels", "problem")
    print_found({"devices": found}, as_json, headings, map(_row, found))


def _by_name(device: Mapping[str, Any]) -> tuple[list[int | str], str]:
    """As a person counts: gate, gate2, gate10."""
    parts = re.split(r"(\d+)", device["name"])
    return [int(one) if one.isdecimal() else one for one in parts], device["id"]


def _row(device: Mapping[str, Any]) -> tuple[object, ...]:
    labels = " ".join(f"{name}={value}" for name, value in sorted(device["labels"].items()))
    problem = device["double"] or device["problem"]
    names = ("id", "name", "version", "release", "wanted")
    seen = ago(device["last_seen_unix_s"])
    return *(device[name] for name in names), _state(device), shares_text(device), seen, labels, problem


def _state(device: Mapping[str, Any]) -> str:
    if device["revoked_unix_s"] is not None:
        return "revoked"
    if device["is_silent"]:
        return "silent"
    return {True: "ok", False: "degraded"}.get(device["healthy"], "unknown")


def show(device: DeviceArgument, at: At, token_file: TokenFile, ca: Ca = None, as_json: AsJson = False) -> None:
    """Show everything known of one device."""
    found = FleetClient(at, ca, token_file).call("GET", f"/devices/{segment(device)}")
    if as_json:
        print_json(found)
        return
    console = stdout_console()
    drift = {model: _drifted(one) for model, one in (found["drift"] or {}).items()}
    for line in _lines({**found, "drift": drift}):
        console.print(plain(line))


def _drifted(report: Mapping[str, Any]) -> str:
    moved = [name for name, one in report.get("quantities", {}).items() if one.get("moved")]
    return f"{report.get('text')} ({', '.join(moved)})" if report.get("findings") else "no drift"


def _lines(facts: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """A line for each fact, nested ones below it."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}:"
            yield from _lines(value, f"{indent}  ")
        else:
            yield f"{indent}{name}: {_said(name, value)}".rstrip()


def _said(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name.endswith("_unix_s"):
        with contextlib.suppress(TypeError, ValueError, OverflowError, OSError):  # a device may report anything
            return datetime.fromtimestamp(value, timezone.utc).isoformat(" ", "seconds")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(str(one) if not isinstance(one, (Mapping, list)) else json.dumps(one) for one in value)
    return str(value)


def label(
    device: DeviceArgument,
    labels: Annotated[list[str], typer.Argument(metavar="NAME=VALUE", help="Labels NAME=VALUE; NAME= removes one.")],
    at: At,
    token_file: TokenFile,
    ca: Ca = None,
) -> None:
    """Set labels of a device; they win over those in its own file."""
    given = {name: value or None for name, value in key_values("NAME=VALUE", labels).items()}
    FleetClient(at, ca, token_file).call("PUT", f"/devices/{segment(device)}/labels", {"labels": given})


def revoke(device: DeviceArgument, at: At, token_file: TokenFile, ca: Ca = None) -> None:
    """Stop admitting a device, from its next poll on."""
    FleetClient(at, ca, token_file).call("POST", f"/devices/{segment(device)}/revoke")


def assign(
    release: Annotated[str, typer.Argument(help="Sequence number of the release; `none` removes the assignment.")],
    at: At,
    token_file: TokenFile,
    device: Annotated[str | None, typer.Option(help="One device.")] = None,
    group: Annotated[str | None, typer.Option(help="The devices of a group, including later ones.")] = None,
    not_before: Annotated[str | None, typer.Option(help="Start time, such as 2027-01-31T02:00+01:00.")] = None,
    ca: Ca = None,
) -> None:
    """Set which release a device or a group of devices is to run."""
    if (device is None) == (group is None):
        raise ConfigError.at(None, "expected --device or --group", "assign")
    body = {
        "release": parsed("RELEASE", release, _sequence),
        "not_before_unix_s": None if not_before is None else parsed("--not-before", not_before, _instant),
    }
    path = f"/devices/{segment(device)}" if device is not None else f"/groups/{segment(group or '')}"
    FleetClient(at, ca, token_file).call("PUT", f"{path}/release", body)


def _sequence(text: str) -> int | None:
    if text == "none":
        return None
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"expected the sequence number of a release or `none`, got {text!r}")
    return int(text)


def _instant(text: str) -> float:
    with contextlib.suppress(ValueError):
        found = datetime.fromisoformat(text)
        if found.tzinfo is not None:
            return found.timestamp()
    raise ValueError(f"expected a time with its offset, such as 2027-01-31T02:00+01:00, got {text!r}")


def explain(
    device: DeviceArgument,
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="The id of a request, or its first characters.")],
    at: At,
    token_file: TokenFile,
    ca: Ca = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the device's next poll.")] = 300.0,
    as_json: AsJson = False,
) -> None:
    """Ask a device why a request was answered as it was; it replies with its next poll."""
    client = FleetClient(at, ca, token_file)
    asked = client.call("POST", f"/devices/{segment(device)}/questions", {"request_id": request})
    until_s = time.monotonic() + wait
    with progress() as bar:
        bar.add_task(f"waiting for the next poll of {device}", total=None)
        while asked["answer"] is None:
            if time.monotonic() >= until_s:
                raise CallFailed(
                    f"{device} has not polled within {wait:g} s; its answer will be stored: question {asked['id']}"
                )
            time.sleep(_ANSWER_S)
            asked = client.call("GET", f"/questions/{asked['id']}")
    answer = asked["answer"]
    if as_json:
        print_json(asked)
        return
    if answer.get("error"):
        raise CallFailed(str(answer["error"]))
    console = stdout_console()
    for title, lines in answer.get("sections", ()):
        console.print(plain(title), style="bold")
        for line in lines:
            console.print(plain(f"  {line}"))


def tail(
    at: At,
    token_file: TokenFile,
    device: Annotated[str | None, typer.Argument(help="One device. Default: all.")] = None,
    ca: Ca = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=1000, help="Number of events.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the last events of devices; with --json one object per line."""
    client = FleetClient(at, ca, token_file)
    found = client.call("GET", "/events", after=-1, limit=lines, device=device)["events"]
    after = 0
    while True:
        for event in found:
            after = event["id"]
            if as_json:
                print_json(event)
            else:
                when = datetime.fromtimestamp(event["at_unix_s"], timezone.utc).isoformat(" ", "seconds")
                stdout_console().print(plain(f"{when}  {event['name']}  {event['kind']}: {event['text']}"))
        if not follow:
            return
        time.sleep(TAIL_S)
        found = client.get_patiently("/events", after=after, device=device)["events"]


group = typer.Typer(no_args_is_help=True, help="Groups of devices, by an expression over their labels.")
_Name = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")]
_EXPRESSION = "A CEL expression over labels, name, version, os and arch, such as 'labels.site == \"hamburg\"'."


@group.command("list")
def list_groups(at: At, token_file: TokenFile, ca: Ca = None, as_json: AsJson = False) -> None:
    """List the groups."""
    found = FleetClient(at, ca, token_file).call("GET", "/groups")
    names = ("name", "devices", "release", "expression")
    print_found(found, as_json, names, ([one[name] for name in names] for one in found["groups"]))


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

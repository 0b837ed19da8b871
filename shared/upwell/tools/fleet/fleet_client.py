"""What commands that call a running service share: options, the calls, and the output of answers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, TypeAlias
from urllib.parse import quote, urlencode

import typer

from upwell.shared.config.security import ClientSecurity, TlsFiles
from upwell.shared.errors import ConfigError, UpwellError
from upwell.shared.files import parse_json
from upwell.shared.oip.grpc.client.client import RemoteError
from upwell.shared.oip.http.client.exchange import HttpsCaller
from upwell.tools.terminal import percent, print_table

BASE = "/api/v1"
PAGE = 1000
MAX_ANSWER_BYTES = 64 << 20
"""Enough for a page of devices with as many labels as they may report, and for a roll-out of 100,000 devices."""

AWAY_S = 600.0
"""How long a command that waits bears with a service that cannot be reached, as while it restarts."""

AGAIN_S = 2.0

At: TypeAlias = Annotated[
    str, typer.Option("--at", envvar="UPWELL_FLEET", help="The service: https://HOST:PORT.", show_default=False)
]
Ca: TypeAlias = Annotated[
    Path | None,
    typer.Option("--ca", envvar="UPWELL_FLEET_CA", help="Issuers of its certificate (PEM). Default: the system's."),
]
TokenFile: TypeAlias = Annotated[
    Path, typer.Option("--token-file", envvar="UPWELL_FLEET_TOKEN_FILE", help="A file with your token.")
]


class CallFailed(UpwellError):
    """The service could not be reached, or refused the call. `is_away`: it may answer soon."""

    def __init__(self, text: str, *, is_away: bool = False) -> None:
        super().__init__(text)
        self.is_away = is_away


class FleetClient:
    """Calls the service's REST interface. Raises `ConfigError` for invalid options."""

    def __init__(self, at: str, ca: Path | None, token_file: Path) -> None:
        self._caller = HttpsCaller(at, ClientSecurity(TlsFiles(ca=ca), token_file))
        self._at = at

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """The service's answer as JSON; None if it is empty. `path` is relative to the interface. Raises
        `CallFailed`.
        """
        asked = urlencode({name: value for name, value in query.items() if value is not None})
        data = b"" if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        where = f"{BASE}{path}" + (f"?{asked}" if asked else "")
        try:
            received = self._caller.call(method, where, headers=headers, body=data, max_bytes=MAX_ANSWER_BYTES)
        except RemoteError as error:
            raise CallFailed(f"{self._at}: {error}", is_away=True) from None
        if received.status == HTTPStatus.NO_CONTENT:
            return None
        try:
            found = parse_json(received.body)
        except ValueError:
            raise CallFailed(f"{self._at}: HTTP {received.status} without JSON; is this a fleet service?") from None
        if received.status == HTTPStatus.OK:
            return found
        detail = found.get("detail", "") if isinstance(found, dict) else ""
        is_away = received.status == HTTPStatus.SERVICE_UNAVAILABLE
        raise CallFailed(str(detail) or f"HTTP {received.status}", is_away=is_away)

    def get_patiently(self, path: str, **query: Any) -> Any:
        """What a GET `call` answers; it bears with a service that cannot be reached for `AWAY_S`."""
        until_s = time.monotonic() + AWAY_S
        while True:
            try:
                return self.call("GET", path, **query)
            except CallFailed as error:
                if not error.is_away or time.monotonic() > until_s:
                    raise
                time.sleep(AGAIN_S)

    def devices(self, **query: Any) -> Iterator[Mapping[str, Any]]:
        """All devices, page by page."""
        after = ""
        while True:
            page = self.call("GET", "/devices", limit=PAGE, after=after, **query)
            yield from page["devices"]
            after = page["next"]
            if not after:
                return


def segment(name: str) -> str:
    """A name as a part of a path. Raises `ConfigError` for an empty one."""
    if not name:
        raise ConfigError.at(None, "expected a name, got an empty one")
    return quote(name, safe="")


def print_json(value: Any) -> None:
    """Print one JSON object."""
    typer.echo(json.dumps(value))


def print_found(found: Any, as_json: bool, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print what was found, as one JSON object or as a table of these rows."""
    if as_json:
        print_json(found)
    else:
        print_table(headings, rows)


def shares_text(device: Mapping[str, Any]) -> str:
    """The share of its requests that budgets let a device offload, by model."""
    return " ".join(f"{model}={percent(one)}" for model, one in sorted(device["shares"].items()))


def ago(unix_s: float | None) -> str:
    """How long ago that was."""
    if unix_s is None:
        return "never"
    seconds = max(0.0, time.time() - unix_s)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"

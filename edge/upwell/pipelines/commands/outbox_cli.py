"""`upwell pipeline outbox`: lists, retries or drops the events that a sink can never accept."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from upwell.edge.config import state_dir_of
from upwell.edge.spool.open_database import opened
from upwell.pipelines.sinks.outbox_store import OUTBOX_NAME, SCHEMA
from upwell.shared.errors import EXIT_FAILED, ConfigError, printable
from upwell.shared.units import count_of

_Config = Annotated[Path, typer.Option("--config", "-c", help="The agent.yaml that runs the pipelines.")]
_Keys = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="The ids of events.", show_default=False)]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
_COLUMNS = ("number", "id", "pipeline", "event", "sequence", "sink", "size_bytes", "error", "is_ordered")
_ROWS = (
    "SELECT number, key, pipeline, event, sequence, sink, size_bytes, error, is_ordered FROM poisoned ORDER BY number"
)

outbox = typer.Typer(no_args_is_help=True, help="Events that a sink rejected and that were set aside.")


@outbox.command("list")
def list_events(config: _Config, as_json: _Json = False) -> None:
    """Show the events that were set aside and the sink's error. Works beside a running agent."""
    path = _database(config)
    rows: list[dict[str, Any]] = []
    with _opened(path) as connection:
        rows = _rows(connection)
    if as_json:
        events = [{**{name: row[name] for name in _COLUMNS[1:-1]}, "retry": bool(row["is_ordered"])} for row in rows]
        typer.echo(json.dumps({"path": str(path), "events": events}))
        return
    lines = [("ID", "PIPELINE", "EVENT", "SINK", "BYTES", "STATE", "ERROR"), *map(_line, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines if rows else ():
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    typer.echo(f"{count_of(len(rows), 'event')} set aside in {path}")


@outbox.command()
def retry(
    config: _Config,
    ids: _Keys = None,
    every: Annotated[bool, typer.Option("--all", help="Send all events again.")] = False,
    as_json: _Json = False,
) -> None:
    """Send events again to the sink that refused them; the policy is checked again.

    A running agent does so within half a minute, otherwise the next one to start.
    """
    _change(
        "retrying",
        config,
        ids or [],
        "UPDATE poisoned SET is_ordered = 1 WHERE number = ?",
        every=every,
        as_json=as_json,
    )


@outbox.command()
def drop(
    config: _Config,
    ids: _Keys = None,
    every: Annotated[bool, typer.Option("--all", help="Drop all events.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: _Json = False,
) -> None:
    """Drop events that were set aside; asks for confirmation at a terminal. They are overwritten on disk."""
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Drop {'all events' if every else ', '.join(ids or [])}?", abort=True, err=True)
    _change("dropped", config, ids or [], "DELETE FROM poisoned WHERE number = ?", every=every, as_json=as_json)


def _change(done: str, config: Path, ids: Sequence[str], statement: str, *, every: bool, as_json: bool) -> None:
    """Run the statement for these events. Exit code 1 if one of them does not exist."""
    if bool(ids) == every:
        raise ConfigError.at(None, "expected either ids or --all")
    path = _database(config)
    with _opened(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        asked = [row for row in _rows(connection) if every or row["id"] in ids]
        changed = [row["id"] for row in asked if connection.execute(statement, (row["number"],)).rowcount]
        connection.execute("COMMIT")
    missing = [one for one in ids if one not in changed]
    if as_json:
        typer.echo(json.dumps({"path": str(path), "changed": changed, "missing": missing}))
    else:
        typer.echo(f"{done} {count_of(len(changed), 'event')}")
        for one in missing:
            typer.echo(f"{printable(one)} is not set aside", err=True)
    if missing:
        raise typer.Exit(EXIT_FAILED)


def _database(config: Path) -> Path:
    return state_dir_of(config, "without a folder no event survives the process; expected state_dir") / OUTBOX_NAME


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    if not path.exists():
        raise ConfigError.at(path, "there is no outbox: no pipeline has run with this agent.yaml", "agent.state_dir")
    try:
        with opened(path, len(SCHEMA)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise ConfigError.at(path, f"the outbox cannot be used: {error}") from None


def _rows(connection: sqlite3.Connection) -> list[dict[str, Any]]:
    return [dict(zip(_COLUMNS, row, strict=True)) for row in connection.execute(_ROWS)]


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    state = "to be sent" if row["is_ordered"] else "set aside"
    cells = (row["id"], row["pipeline"], row["event"], row["sink"], row["size_bytes"], state, row["error"])
    return tuple(printable(cell) for cell in cells)

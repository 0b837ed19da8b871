"""`upwell spool`: list or drop the cases waiting for the cloud. Works while the agent runs."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from upwell.edge.config import state_dir_of
from upwell.edge.spool.open_database import delete_rows, opened
from upwell.edge.spool.spool import FILE_NAME
from upwell.edge.spool.spool_store import SCHEMA, tags_in
from upwell.shared.errors import ConfigError, printable
from upwell.shared.units import count_of

_Config = Annotated[Path, typer.Option("--config", "-c", help="The agent's agent.yaml.")]
_Tags = Annotated[list[str] | None, typer.Option("--tag", help="Only cases with KEY=VALUE; may be repeated.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]

_NO_FOLDER = "without a folder the agent spools no cases; expected agent.state_dir"
_COLUMNS = (
    "id", "kind", "state", "model", "cloud_model", "request_id", "tags", "reason", "created_wall_s", "attempts",
    "size_bytes", "edge_answer_digest", "error",
)  # fmt: skip
_SELECTED = ", ".join("CAST(tags AS BLOB)" if name == "tags" else name for name in _COLUMNS)
_ITEMS = f"SELECT {_SELECTED} FROM items ORDER BY kept_s, rowid"  # noqa: S608 (names from above)


def list_cases(config: _Config, tag: _Tags = None, as_json: _Json = False) -> None:
    """List the spooled cases: waiting, done (answered) or poisoned (set aside)."""
    tags = _tags(tag or [])
    path = state_dir_of(config, _NO_FOLDER) / FILE_NAME
    items: list[dict[str, Any]] = []
    if path.exists():
        with _errors(path), opened(path, len(SCHEMA)) as connection:
            items = _matching(connection, tags)
    if as_json:
        typer.echo(json.dumps({"path": str(path), "items": items}))
    else:
        _show(path, items)


def purge(
    config: _Config,
    tag: _Tags = None,
    every: Annotated[bool, typer.Option("--all", help="Drop every case.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: _Json = False,
) -> None:
    """Drop the cases that have all these tags, or every case, with their answers; asks first at a terminal.

    Dropped data is overwritten on disk. Answers already delivered to a sink are not touched.
    """
    if bool(tag) == every:
        raise ConfigError.at(None, "expected either --tag KEY=VALUE or --all")
    tags = _tags(tag or [])
    path = state_dir_of(config, _NO_FOLDER) / FILE_NAME
    purged = 0
    if path.exists():
        with _errors(path), opened(path, len(SCHEMA)) as connection:
            doomed = [item["id"] for item in _matching(connection, tags)]
            if doomed and not yes and sys.stdin.isatty():
                typer.confirm(f"Drop {count_of(len(doomed), 'case')} from {path}?", abort=True, err=True)
            purged = delete_rows(connection, "items", doomed)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # while an agent reads, it does so later
    if as_json:
        typer.echo(json.dumps({"path": str(path), "purged": purged}))
    else:
        typer.echo(f"purged {count_of(purged, 'case')} from {path}")


def _tags(texts: Sequence[str]) -> dict[str, str]:
    wrong = [text for text in texts if not text.partition("=")[1] or text.startswith("=")]
    if wrong:
        raise ConfigError.at(None, f"expected KEY=VALUE, got {', '.join(map(repr, wrong))}", "--tag")
    return {name.lower(): value for name, _, value in (text.partition("=") for text in texts)}


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise ConfigError.at(path, f"the spool cannot be used: {error}") from None


def _matching(connection: sqlite3.Connection, tags: Mapping[str, str]) -> list[dict[str, Any]]:
    items = [dict(zip(_COLUMNS, row, strict=True)) for row in connection.execute(_ITEMS)]
    for item in items:
        item["tags"] = tags_in(item["tags"]) or {}
        item["created_unix_s"] = item.pop("created_wall_s")
    # As in rules, a missing tag is the empty string.
    return [item for item in items if all(item["tags"].get(name, "") == value for name, value in tags.items())]


def _show(path: Path, items: Sequence[Mapping[str, Any]]) -> None:
    rows = [("ID", "STATE", "KIND", "MODEL", "REASON", "KEPT", "ATTEMPTS", "BYTES", "TAGS", "ERROR"), *map(_row, items)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows if items else ():
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    states = [str(item["state"]) for item in items]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("waiting", "done", "poisoned"))
    typer.echo(f"{count_of(len(items), 'case')} in {path}: {counts}")


def _row(item: Mapping[str, Any]) -> tuple[str, ...]:
    kept = datetime.fromtimestamp(item["created_unix_s"]).astimezone().isoformat(timespec="seconds")
    tags = " ".join(f"{name}={value}" for name, value in item["tags"].items())
    known = (item["id"], item["state"], item["kind"], item["model"], item["reason"], kept)
    return tuple(printable(cell) for cell in (*known, item["attempts"], item["size_bytes"], tags, item["error"]))

"""Forgetting cases wherever the agent keeps something of them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from upwell.edge.cases.store import FILE_NAME
from upwell.edge.config import AgentConfig
from upwell.edge.observe.outcome_recorder import LOG_NAME
from upwell.edge.spool.database import opened
from upwell.edge.spool.spool import FILE_NAME as SPOOL_NAME
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError
from upwell.tools.cases.erasing import erase_lines, erase_rows
from upwell.tools.cases.exports import forget_in_exports
from upwell.tools.cases.labels import read_labels, write_labels
from upwell.tools.cases.source import CaseDatabase, CaseSource

IsMeant = Callable[[Mapping[str, Any]], bool]


def forget(
    path: Path, source: CaseSource, ids: Sequence[str], tags: Mapping[str, str], *, is_all: bool
) -> dict[str, Any]:
    """Forget these cases, and all else with these tags, or all; how much of each kind there was.

    `path` is what the person named. Raises `ConfigError` for a state folder, from which nobody can tell where the
    results go, and where something could not be erased.
    """
    if isinstance(source, CaseDatabase) and path.is_dir():
        raise ConfigError.at(path, "expected the agent.yaml, which says where results go, too")
    exports = forget_in_exports(source.folder, ids)
    labels, doomed = read_labels(source.folder), set(ids)
    if doomed & labels.keys():
        write_labels(source.folder, {id: label for id, label in labels.items() if id not in doomed})
    found: dict[str, Any] = {"cases": source.erase(ids), "exports": exports}
    if not isinstance(source, CaseDatabase) or not (tags or is_all):
        return found
    config = load_yaml(path, AgentConfig)

    def is_meant(document: Mapping[str, Any]) -> bool:
        known = document.get("tags") or {}
        return is_all or all(known.get(name, "") == value for name, value in tags.items())

    folder, results = source.folder, config.agent.spool.results
    found["spooled"] = _erase_spooled(folder / SPOOL_NAME, is_meant)
    found["results"] = 0 if results is None else erase_lines(results, is_meant, _forgotten)
    logs = (folder / LOG_NAME, folder / f"{LOG_NAME}.1")
    found["log lines"] = sum(erase_lines(log, is_meant, lambda _: None) for log in logs)
    found["damaged databases"] = _remove_damaged(folder)
    return found


def _forgotten(line: Mapping[str, Any]) -> dict[str, Any]:
    """What stays of a result: its number, which readers and the agent go on from."""
    return {"sequence": line.get("sequence", 0), "forgotten": True}


def _erase_spooled(path: Path, is_meant: IsMeant) -> int:
    if not path.exists():
        return 0
    try:
        with opened(path) as connection:
            rows = connection.execute("SELECT id, tags FROM items").fetchall()
            return erase_rows(
                connection, path, "items", [id for id, tags in rows if is_meant({"tags": json.loads(tags)})]
            )
    except sqlite3.Error as error:
        raise ConfigError.at(path, f"the spool cannot be used: {error}") from None


def _remove_damaged(folder: Path) -> int:
    """Databases that were set aside, since nobody can tell what is in them."""
    found = [path for name in (FILE_NAME, SPOOL_NAME) for path in folder.glob(f"{name}.damaged*")]
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)

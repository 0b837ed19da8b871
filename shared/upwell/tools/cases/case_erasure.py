"""Erases cases and whatever else a device keeps of requests with given tags: spool, outbox, results, logs, flights."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from upwell.edge.case_collection.case_database import FILE_NAME
from upwell.edge.config import AgentConfig
from upwell.edge.observe.flight_recorder import FOLDER_NAME as FLIGHTS_NAME
from upwell.edge.observe.flight_recorder import FRAMES_NAME
from upwell.edge.observe.outcome_recorder import LOG_NAME
from upwell.edge.observe.request_trace import LONGEST_TAG, MOST_TAGS
from upwell.edge.spool.open_database import DAMAGED_SUFFIX, connect
from upwell.edge.spool.spool import FILE_NAME as SPOOL_NAME
from upwell.edge.spool.spool_store import tags_in
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError, Problem
from upwell.tools.cases.case_exports import forget_in_exports
from upwell.tools.cases.case_labels import read_labels, write_labels
from upwell.tools.cases.case_source import CaseDatabase, CaseSource, changing, erase_lines, erase_rows

IsMeant = Callable[[Mapping[str, Any]], bool]


def forget(
    path: Path, source: CaseSource, ids: Sequence[str], tags: Mapping[str, str], *, is_all: bool
) -> dict[str, Any]:
    """Erase these cases, and everything else with these tags, or everything; return the number erased of each kind.

    `path` is what the user named. Raises `ConfigError` for a state folder, which does not say where the results go,
    and if something could not be erased; it names the exports too.
    """
    if isinstance(source, CaseDatabase) and path.is_dir():
        raise ConfigError.at(path, "expected the agent.yaml, which also says where results go")
    exports: set[str] = set()
    try:
        found = _forget(path, source, ids, tags, exports, is_all=is_all)
    except ConfigError as error:  # the index has forgotten these cases, so nothing would name the exports again
        others = (Problem(Path(one), None, None, "", "this export holds such cases: delete it") for one in exports)
        raise ConfigError([*error.problems, *others]) from None
    return {**found, "exports": sorted(exports)}


def _forget(
    path: Path, source: CaseSource, ids: Sequence[str], tags: Mapping[str, str], exports: set[str], *, is_all: bool
) -> dict[str, Any]:
    from upwell.pipelines.run.late_answers import AMENDMENTS_NAME  # pipelines are not needed to list cases
    from upwell.pipelines.sinks.base import requests_behind
    from upwell.pipelines.sinks.outbox_store import OUTBOX_NAME

    def forget_beside(erased: Iterable[str | int]) -> None:
        doomed = set(map(str, erased))
        with changing(source.folder):
            exports.update(forget_in_exports(source.folder, doomed))
            labels = read_labels(source.folder)
            if doomed & labels.keys():
                write_labels(source.folder, {id: label for id, label in labels.items() if id not in doomed})

    forget_beside(ids)
    unreadable = [str(one) for one in source.unreadable()]
    found: dict[str, Any] = {"cases": source.erase(ids), "unreadable": unreadable}
    forget_beside(ids)  # an export that has begun meanwhile may have read them
    if not isinstance(source, CaseDatabase) or not (tags or is_all):
        return found
    config = load_yaml(path, AgentConfig)

    def is_meant(document: Mapping[str, Any]) -> bool:
        known = document.get("tags") or {}  # the flight recorder keeps the beginning of a long one
        return is_all or all(known.get(name, "") in (value, value[:LONGEST_TAG]) for name, value in tags.items())

    def is_event(document: Mapping[str, Any]) -> bool:
        return any(is_meant({"tags": of_request}) for _, of_request in requests_behind("", document["tags"]))

    folder, results = source.folder, config.agent.spool.results
    # What could not be read has tags, too.
    found["cases"] += len(_erase_tagged(source.path, "cases", "id", is_meant, forget_beside))
    spooled = _erase_tagged(folder / SPOOL_NAME, "items", "id", is_meant)
    found["spooled"] = len(spooled)
    tables = ("messages", "poisoned")
    found["events"] = sum(len(_erase_tagged(folder / OUTBOX_NAME, table, "number", is_event)) for table in tables)
    _erase_tagged(folder / OUTBOX_NAME, "retries", "number", is_event)  # until version 3 the tags of `poisoned`
    found["amendments"] = _erase_amendments(folder / AMENDMENTS_NAME, spooled, is_all)
    found |= _erase_records(folder, is_meant, tags, is_all)
    found["results"] = 0 if results is None else erase_lines(results, is_meant, _forgotten)
    logs = (folder / LOG_NAME, folder / f"{LOG_NAME}.1")
    found["log lines"] = sum(erase_lines(log, is_meant, lambda _: None) for log in logs)
    found["damaged databases"] = _remove_damaged(folder, (FILE_NAME, SPOOL_NAME, OUTBOX_NAME, AMENDMENTS_NAME))
    return found


def _forgotten(line: Mapping[str, Any]) -> dict[str, Any]:
    """What stays of a result: its number, from which readers and the agent continue."""
    return {"sequence": line.get("sequence", 0), "forgotten": True}


def _erase_tagged(
    path: Path, table: str, key: str, is_meant: IsMeant, first: Callable[[list[str | int]], None] = lambda _: None
) -> list[str | int]:
    """The keys of the erased rows, which `first` gets before; so is one erased of which nobody knows the tags."""
    if not path.exists():
        return []
    try:
        with closing(connect(path)) as connection:
            columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
            if not columns:
                return []
            source = table if "tags" in columns else f"{table} LEFT JOIN retries USING ({key})"
            query = f"SELECT {key}, CAST(tags AS BLOB) FROM {source}"  # noqa: S608 (our own names)
            rows = [(number, tags_in(tags or b"")) for number, tags in connection.execute(query).fetchall()]
            doomed = [number for number, tags in rows if tags is None or is_meant({"tags": tags})]
            first(doomed)
            erase_rows(connection, path, table, doomed, key)
            return doomed
    except sqlite3.Error as error:
        raise ConfigError.at(path, f"it cannot be used: {error}") from None


def _erase_amendments(path: Path, spooled: Sequence[str | int], is_all: bool) -> int:
    """Erase events that wait for the cloud's answer to spooled cases."""
    if not path.exists():
        return 0
    try:
        with closing(connect(path)) as connection:
            ids = [row[0] for row in connection.execute("SELECT DISTINCT spool_id FROM waiting")] if is_all else spooled
            return erase_rows(connection, path, "waiting", ids, "spool_id")
    except sqlite3.Error as error:
        raise ConfigError.at(path, f"it cannot be used: {error}") from None


def _erase_records(folder: Path, is_meant: IsMeant, tags: Mapping[str, str], is_all: bool) -> dict[str, int]:
    """Erase requests from the flight recorder, and the frames of pipelines that they were about, with amendments.

    A request of which it has not kept all tags is erased if those kept do not rule it out.
    """
    gone: set[object] = set()

    def may_be_meant(document: Mapping[str, Any]) -> bool:
        known = document.get("tags") or {}
        is_cut = len(known) >= MOST_TAGS or any(len(name) >= LONGEST_TAG for name in known)
        return is_cut and all(
            known.get(name[:LONGEST_TAG], value) in (value, value[:LONGEST_TAG]) for name, value in tags.items()
        )

    def is_request(document: Mapping[str, Any]) -> bool:
        if is_meant(document) or may_be_meant(document):
            gone.add(document.get("id"))
            return True
        return False

    def is_frame(document: Mapping[str, Any]) -> bool:
        about = {document.get("amends"), *(id for step in document.get("steps") or () for id in step["requests"])}
        if is_all or about & gone:
            gone.update(event["id"] for event in document.get("events") or ())
            return True
        return False

    found = {}
    for name, is_erased in ((FLIGHTS_NAME, is_request), (FRAMES_NAME, is_frame)):
        logs = sorted((folder / name).glob("*.jsonl"))
        found[name] = sum(erase_lines(log, is_erased, lambda _: None) for log in logs)
    return found


def _remove_damaged(folder: Path, names: Sequence[str]) -> int:
    """Delete databases that were set aside: what is in them is unknown."""
    found = [path for name in names for path in folder.glob(f"{name}{DAMAGED_SUFFIX}*")]
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)

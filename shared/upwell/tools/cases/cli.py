"""`upwell cases list | stats | show | purge`: lists cases, shows their pictures, and erases them."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_args

import typer
from rich.table import Table

from upwell.edge.case_collection.case_database import FILE_NAME
from upwell.edge.case_collection.collected_case import CaseFacts, CollectedCase
from upwell.edge.config import AgentConfig
from upwell.edge.observe.flight_recorder import FOLDER_NAME as FLIGHTS_NAME
from upwell.edge.observe.flight_recorder import FRAMES_NAME
from upwell.edge.observe.outcome_recorder import LOG_NAME
from upwell.edge.observe.request_trace import LONGEST_TAG, MOST_TAGS
from upwell.edge.spool.open_database import DAMAGED_SUFFIX, connect, version_of
from upwell.edge.spool.spool import FILE_NAME as SPOOL_NAME
from upwell.edge.spool.spool_store import tags_in
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError, printable
from upwell.shared.files import write_named
from upwell.shared.routing.case_selection import Why
from upwell.shared.units import count_of
from upwell.tools.cases.case_exports import forget_in_exports
from upwell.tools.cases.case_labels import read_labels, write_labels
from upwell.tools.cases.case_source import (
    CaseDatabase,
    CaseFilter,
    CaseLost,
    CaseSource,
    erase_lines,
    erase_rows,
    open_source,
)
from upwell.tools.cases.contact_sheet import html_sheet, png_sheet
from upwell.tools.terminal import AsJson, key_values, plain, progress, table_console

CasesArgument: TypeAlias = Annotated[
    Path,
    typer.Argument(
        metavar="CASES", help="An agent.yaml, its state folder, or a folder of delivered cases.", show_default=False
    ),
]
TagOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--tag", help="Only cases with this tag NAME=VALUE; if repeated, with all of them.")
]
ModelOption: TypeAlias = Annotated[list[str] | None, typer.Option("--model", help="Only cases of this model.")]
WhyOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--why", help=f"Only cases collected for this reason: {', '.join(get_args(Why))}.")
]
IdsArgument: TypeAlias = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="Only these cases, by the first characters of their ids.")
]

_SHEET_CASES = 200
_MOST_IN_A_PICTURE = 1200
"""As many take 250 MB of memory while it is drawn."""


def list_cases(
    cases: CasesArgument, tag: TagOption = None, model: ModelOption = None, why: WhyOption = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """List the cases, oldest first: time, model and source, why each was kept and how hard it was."""
    found = chosen(open_source(cases), case_filter(tag, model, why))
    if as_json:
        documents = [facts.model_dump(mode="json", exclude={"signature"}) for facts in found]
        typer.echo(json.dumps({"path": str(cases), "cases": documents}))
        return
    table = Table("id", "kept", "model", "source", "why", "hardness", "route", "tags", box=None, pad_edge=False)
    for facts in found:
        hardness = "" if facts.hardness is None else f"{facts.hardness:.3f}"
        tags = " ".join(f"{name}={value}" for name, value in facts.tags.items())
        cells = (
            facts.id[:12],
            when(facts),
            facts.model,
            facts.source,
            ", ".join(facts.why),
            hardness,
            facts.route,
            tags,
        )
        table.add_row(*map(plain, cells))
    if found:
        table_console().print(table)
    typer.echo(f"{count_of(len(found), 'case')} in {printable(cases)}")


def stats(cases: CasesArgument, as_json: AsJson = False) -> None:
    """Count the cases by model, source and reason for keeping."""
    found = chosen(open_source(cases), case_filter(None, None, None))
    counters: dict[str, Counter[str]] = {
        "models": Counter(facts.model for facts in found),
        "sources": Counter(facts.source for facts in found),
        "why": Counter(why for facts in found for why in facts.why),
        "days": Counter(when(facts)[:10] for facts in found),
        "sides": Counter(_sides(facts) for facts in found),
    }
    evaluated = sum(facts.is_evaluated for facts in found)
    if as_json:
        counts = {name: dict(counter) for name, counter in counters.items()}
        typer.echo(json.dumps({"path": str(cases), "cases": len(found), "evaluated": evaluated, **counts}))
        return
    table = Table("", "", "cases", box=None, pad_edge=False, show_header=False)
    for name, counter in counters.items():
        for value, number in sorted(counter.items()):
            table.add_row(plain(name), plain(value or "–"), str(number))
    if found:
        table_console().print(table)
    typer.echo(f"{count_of(len(found), 'case')} in {printable(cases)}, {evaluated} of them in the evaluation set")


def show(
    cases: CasesArgument,
    ids: IdsArgument = None,
    out: Annotated[Path, typer.Option(help="The sheet to write: a .html or .png file.")] = Path("cases.html"),
    tag: TagOption = None,
    model: ModelOption = None,
    why: WhyOption = None,
    most: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of cases, newest first.")] = _SHEET_CASES,
) -> None:
    """Write a sheet of the cases: each picture, both answers, and why it was kept."""
    if out.suffix.lower() not in (".html", ".png"):
        raise ConfigError.at(out, "expected a .html or .png file", "--out")
    source = open_source(cases)
    found = by_ids(chosen(source, case_filter(tag, model, why)), ids)[-most:]
    if not found:
        raise ConfigError.at(cases, "there is no such case; see `upwell cases list`")
    is_picture = out.suffix.lower() == ".png"
    if is_picture and len(found) > _MOST_IN_A_PICTURE:
        problem = f"a picture has room for {_MOST_IN_A_PICTURE} of these {len(found)}; write a .html file, or fewer"
        raise ConfigError.at(None, problem, "--most")
    left_out: list[CaseLost] = []
    with progress() as bar, source.reading() as read_case:

        def read() -> Iterator[CollectedCase]:
            for facts in bar.track(found, description="cases"):
                try:
                    case = read_case(facts.id)
                except CaseLost as error:
                    left_out.append(error)
                else:
                    yield case

        sheet = png_sheet(read(), len(found)) if is_picture else html_sheet(read())
    write_named(out, sheet, "--out")
    for error in left_out:
        typer.echo(printable(f"left out: {error}"), err=True)
    typer.echo(printable(f"{count_of(len(found) - len(left_out), 'case')} in {out}"))


def purge(
    cases: Annotated[Path, typer.Argument(metavar="CASES", help="The agent.yaml.", show_default=False)],
    ids: IdsArgument = None,
    tag: TagOption = None,
    every: Annotated[bool, typer.Option("--all", help="Delete every case.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Erase cases: overwrite them on disk, in the spool, in results and logs, and in the index of exports.

    With --tag, also erases waiting cases of the spool, results and request-log lines with these tags. Works beside a
    running agent. Finished exports that hold such cases are listed for you to delete.
    """
    if sum((bool(tag), every, bool(ids))) != 1:
        raise ConfigError.at(None, "expected one of: --tag NAME=VALUE, ids, or --all")
    source, tags = open_source(cases), tag_values(tag)
    found = source.facts()
    doomed = found if every else by_ids(found, ids) if ids else [f for f in found if CaseFilter(tags).chooses(f)]
    if doomed and not yes and sys.stdin.isatty():
        typer.confirm(f"Delete {count_of(len(doomed), 'case')} of {printable(cases)}?", abort=True, err=True)
    forgotten = forget(cases, source, [facts.id for facts in doomed], tags, is_all=every)
    if as_json:
        typer.echo(json.dumps({"path": str(cases), **forgotten}))
        _fail_for(forgotten["unreadable"])
        return
    counts = {name: number for name, number in forgotten.items() if isinstance(number, int)}
    parts = ", ".join(f"{number} {name.removesuffix('s') if number == 1 else name}" for name, number in counts.items())
    typer.echo(printable(f"forgotten: {parts}"))
    for path in forgotten["exports"]:
        typer.echo(printable(f"these cases were exported to {path}: delete the export, or export again"))
    _fail_for(forgotten["unreadable"])


def _fail_for(unreadable: Sequence[str]) -> None:
    """Exit with code 1 if it is unknown whether everything is erased."""
    for path in unreadable:
        typer.echo(printable(f"{path} is kept, since its case is unknown: delete it yourself"), err=True)
    if unreadable:
        raise typer.Exit(1)


def case_filter(tag: Sequence[str] | None, model: Sequence[str] | None, why: Sequence[str] | None) -> CaseFilter:
    """The options as a filter. Raises `ConfigError`."""
    unknown = sorted(set(why or ()) - set(get_args(Why)))
    if unknown:
        raise ConfigError.at(None, f"expected one of {', '.join(get_args(Why))}, got {unknown[0]!r}", "--why")
    return CaseFilter(tag_values(tag), model or (), why or ())


def tag_values(tag: Sequence[str] | None) -> dict[str, str]:
    """`["A=b"]` -> `{"a": "b"}`. Raises `ConfigError`."""
    return {name.lower(): value for name, value in key_values("--tag", tag).items()}


def chosen(source: CaseSource, only: CaseFilter) -> list[CaseFacts]:
    """The cases that the filter selects, oldest first."""
    return [facts for facts in source.facts() if only.chooses(facts)]


def by_ids(found: Sequence[CaseFacts], ids: Sequence[str] | None) -> list[CaseFacts]:
    """The cases with these ids, or all without any. Raises `ConfigError` for a prefix that no id has."""
    if not ids:
        return list(found)
    whole = set(ids) & {facts.id for facts in found}
    prefixes = tuple(id for id in ids if id not in whole)  # a list for an export may name all cases by whole ids
    for id in prefixes:
        if not any(facts.id.startswith(id) for facts in found):
            raise ConfigError.at(None, f"there is no case {id!r}; see `upwell cases list`")
    return [facts for facts in found if facts.id in whole or facts.id.startswith(prefixes)]


def when(facts: CaseFacts) -> str:
    """When the row was asked about, in local time."""
    return datetime.fromtimestamp(facts.created_unix_s).astimezone().isoformat(timespec="seconds")


def _sides(facts: CaseFacts) -> str:
    both: dict[tuple[bool, bool], Any] = {
        (True, True): "both",
        (True, False): "edge alone",
        (False, True): "cloud alone",
    }
    return str(both.get((bool(facts.edge_digest), bool(facts.cloud_digest)), "neither"))


IsMeant = Callable[[Mapping[str, Any]], bool]


def forget(
    path: Path, source: CaseSource, ids: Sequence[str], tags: Mapping[str, str], *, is_all: bool
) -> dict[str, Any]:
    """Erase these cases, and everything else with these tags, or everything; return the number erased of each kind.

    `path` is what the user named. Raises `ConfigError` for a state folder, which does not say where the results go,
    and if something could not be erased.
    """
    from upwell.pipelines.run.late_answers import AMENDMENTS_NAME  # pipelines are not needed to list cases
    from upwell.pipelines.sinks.base import requests_behind
    from upwell.pipelines.sinks.outbox_store import OUTBOX_NAME

    if isinstance(source, CaseDatabase) and path.is_dir():
        raise ConfigError.at(path, "expected the agent.yaml, which also says where results go")
    exports = forget_in_exports(source.folder, ids)
    labels, doomed = read_labels(source.folder), set(ids)
    if doomed & labels.keys():
        write_labels(source.folder, {id: label for id, label in labels.items() if id not in doomed})
    unreadable = [str(one) for one in source.unreadable()]
    found: dict[str, Any] = {"cases": source.erase(ids), "exports": exports, "unreadable": unreadable}
    if not isinstance(source, CaseDatabase) or not (tags or is_all):
        return found
    config = load_yaml(path, AgentConfig)

    def is_meant(document: Mapping[str, Any]) -> bool:
        known = document.get("tags") or {}  # the flight recorder keeps the beginning of a long one
        return is_all or all(known.get(name, "") in (value, value[:LONGEST_TAG]) for name, value in tags.items())

    def is_event(document: Mapping[str, Any]) -> bool:
        return any(is_meant({"tags": of_request}) for _, of_request in requests_behind("", document["tags"]))

    folder, results = source.folder, config.agent.spool.results
    found["cases"] += len(_erase_tagged(source.path, "cases", "id", is_meant))  # what could not be read has tags, too
    spooled = _erase_tagged(folder / SPOOL_NAME, "items", "id", is_meant)
    found["spooled"] = len(spooled)
    tables = ("messages", "poisoned")
    found["events"] = sum(len(_erase_tagged(folder / OUTBOX_NAME, table, "number", is_event)) for table in tables)
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


def _erase_tagged(path: Path, table: str, key: str, is_meant: IsMeant) -> list[str | int]:
    """The keys of the erased rows; so is one erased of which nobody knows the tags."""
    if not path.exists():
        return []
    try:
        with closing(connect(path)) as connection:
            if not version_of(connection):
                return []
            query = f"SELECT {key}, CAST(tags AS BLOB) FROM {table}"  # noqa: S608 (our own names)
            rows = [(number, tags_in(tags)) for number, tags in connection.execute(query).fetchall()]
            doomed = [number for number, tags in rows if tags is None or is_meant({"tags": tags})]
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

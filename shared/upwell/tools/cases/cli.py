"""`upwell cases list | stats | show | purge`: lists cases, shows their pictures, and erases them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_args

import typer
from rich.table import Table

from upwell.edge.case_collection.collected_case import CaseFacts, CollectedCase
from upwell.shared.errors import ConfigError, printable
from upwell.shared.files import write_named
from upwell.shared.routing.case_selection import Why
from upwell.shared.units import count_of
from upwell.tools.cases.case_erasure import forget
from upwell.tools.cases.case_source import CaseFilter, CaseLost, CaseSource, open_source
from upwell.tools.cases.contact_sheet import html_sheet, png_sheet
from upwell.tools.terminal import AsJson, key_values, plain, progress, stdout_console

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
        stdout_console().print(table)
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
        stdout_console().print(table)
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

"""`upwell cases export | import | select`: exports cases to other tools, imports labels, and selects what to label
first.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer

from upwell.edge.case_collection.collected_case import CaseFacts, CollectedCase
from upwell.shared.errors import ConfigError, InvalidRequest, printable
from upwell.shared.files import new_folder, read_file, write_named
from upwell.shared.units import count_of
from upwell.tools.cases.case_exports import FORMATS, ExportTask, Side, forget_in_exports, note_export
from upwell.tools.cases.case_labels import IMPORTS, NOBODY_GAVE, import_labels, read_labels, write_labels
from upwell.tools.cases.case_source import CaseLost, changing, open_source
from upwell.tools.cases.cases_to_label import choose, features_of, hardness_of
from upwell.tools.cases.cli import CasesArgument, ModelOption, TagOption, WhyOption, by_ids, case_filter, chosen
from upwell.tools.terminal import AsJson, progress

Which = Literal["training", "evaluation", "all"]
_LOST, _NOT_THERE = "no longer stored, or unreadable", "in the list of ids, but not among these cases"
_WHICH_HELP = "training: cases not chosen at random; evaluation: the random ones, for judging models; all: both."


def export(
    cases: CasesArgument,
    out: Annotated[Path, typer.Option("--out", help="The folder to write; must not exist.", show_default=False)],
    format: Annotated[str, typer.Option("--format", help=", ".join(FORMATS), show_default=False)],
    tag: TagOption = None,
    model: ModelOption = None,
    why: WhyOption = None,
    which: Annotated[Which, typer.Option("--set", help=_WHICH_HELP)] = "training",
    ids: Annotated[
        Path | None, typer.Option(help="Only the cases listed in this file, written by `select --out`.")
    ] = None,
    side: Annotated[Side, typer.Option("--side", help="Whose answer to use for cases without a label.")] = "cloud",
    picture_url: Annotated[
        str | None, typer.Option(help="label-studio: prefix of each picture's name. Default: local files.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write cases for another tool: all of them, or nothing.

    The label is what people said (`upwell cases import`), otherwise the cloud's answer. Evaluation cases are left out
    unless asked for.
    """
    if format not in FORMATS:
        raise ConfigError.at(None, f"expected one of {', '.join(FORMATS)}, got {format!r}", "--format")
    source = open_source(cases)
    found, left_out = _of_set(chosen(source, case_filter(tag, model, why)), which), Counter[str]()
    if ids is not None:
        found, left_out[_NOT_THERE] = _listed(ids, found)
    if not found:
        raise ConfigError.at(cases, f"there are no cases to export (--set {which}); see `upwell cases stats`")
    url = f"/data/local-files/?d={out.name}/" if picture_url is None else picture_url
    with progress() as bar, new_folder(out, "--out") as folder, source.reading() as read_case:
        # First the index: an export missing from it could not be found when a case must be erased.
        with changing(source.folder):
            note_export(source.folder, out.absolute(), format, [facts.id for facts in found])
        step = bar.add_task("cases", total=len(found))

        def read(id: str) -> CollectedCase:
            bar.advance(step)
            return read_case(id)

        task = ExportTask(found, read, read_labels(source.folder), side)
        unfit = FORMATS[format](task, folder, url)
        with changing(source.folder):
            forget_in_exports(source.folder, {*task.lost, *unfit}, out.absolute())
    number = len(found) - len(task.lost) - len(unfit)
    left_out[_LOST] = len(task.lost)
    left_out += Counter(unfit.values())
    if as_json:
        typer.echo(json.dumps({"out": str(out), "format": format, "cases": number, "left_out": dict(left_out)}))
        return
    typer.echo(printable(f"{count_of(number, 'case')} in {out}"))
    for reason, count in left_out.items():
        typer.echo(f"{count} left out: {reason}")


def import_(
    cases: CasesArgument,
    file: Annotated[Path, typer.Argument(help="The file with the labels.", show_default=False)],
    format: Annotated[str, typer.Option("--format", help=", ".join(IMPORTS), show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Import labels of cases: all of a file, or nothing if it has mistakes."""
    if format not in IMPORTS:
        raise ConfigError.at(None, f"expected one of {', '.join(IMPORTS)}, got {format!r}", "--format")
    source = open_source(cases)
    labels, others = import_labels(file, format, {facts.id: facts for facts in source.facts()})
    with changing(source.folder):
        known = read_labels(source.folder)
        write_labels(source.folder, {**known, **labels})
    changed = sum(known.get(id) not in (None, label) for id, label in labels.items())
    if as_json:
        typer.echo(json.dumps({"labels": len(labels), "changed": changed, "left_out": others}))
    else:
        typer.echo(f"{count_of(len(labels), 'label')}, {changed} of them replacing earlier ones")
        if others:
            typer.echo(f"{count_of(others, 'label')} left out, {NOBODY_GAVE}")


def select(
    cases: CasesArgument,
    budget: Annotated[int, typer.Option(min=1, help="Number of cases to choose for labelling.", show_default=False)],
    tag: TagOption = None,
    model: ModelOption = None,
    why: WhyOption = None,
    out: Annotated[Path | None, typer.Option(help="A file for the ids, one per line, for `export --ids`.")] = None,
    as_json: AsJson = False,
) -> None:
    """Select what to label first: rows that represent many hard ones, by the embedding or else the inputs.

    Selects from unlabelled cases of the training set.
    """
    source = open_source(cases)
    labelled = read_labels(source.folder)
    found = _of_set(chosen(source, case_filter(tag, model, why)), "training")
    found = [facts for facts in found if facts.id not in labelled]
    models = sorted({facts.model for facts in found})
    if len(models) != 1:
        what = (
            "there are no cases to label"
            if not models
            else f"these are cases of {', '.join(models)}; choose one with --model"
        )
        raise ConfigError.at(cases, what)
    read_facts: list[CaseFacts] = []
    vectors: list[list[float]] = []
    with progress() as bar, source.reading() as read:
        for facts in bar.track(found, description="cases"):
            with contextlib.suppress(CaseLost, InvalidRequest):  # dropped meanwhile, or garbled by the disk
                vectors.append(features_of(read(facts.id)))
                read_facts.append(facts)
    width = max(map(len, vectors), default=0)
    features = np.full((len(vectors), width), np.nan)
    for row, vector in enumerate(vectors):
        if len(vector) == width:
            features[row] = vector
    hardness = np.array([hardness_of(facts) for facts in read_facts])
    picked = [read_facts[index].id for index in choose(features, hardness, budget)]
    if out is not None:
        write_named(out, "".join(f"{id}\n" for id in picked).encode(), "--out")
    if as_json:
        typer.echo(json.dumps({"of": len(found), "cases": picked}))
    elif out is None:
        typer.echo("\n".join(picked))
    else:
        typer.echo(printable(f"{len(picked)} of {len(found)} cases in {out}"))


def _listed(path: Path, found: Sequence[CaseFacts]) -> tuple[list[CaseFacts], int]:
    """Those of the cases that a file lists by their ids, and how many of its ids are of none."""
    wanted = set(read_file(path, "a list of ids", 64 << 20).decode("ascii", "replace").split())
    there = {facts.id for facts in found}
    gone = {id for id in wanted - there if not any(one.startswith(id) for one in there)}
    wanted -= gone
    return by_ids(found, sorted(wanted)) if wanted else [], len(gone)


def _of_set(found: Sequence[CaseFacts], which: Which) -> list[CaseFacts]:
    return [facts for facts in found if which == "all" or facts.is_evaluated == (which == "evaluation")]

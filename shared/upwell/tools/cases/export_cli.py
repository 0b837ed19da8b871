"""`upwell cases export | import | select`: out to other tools, labels back in, and what to label first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import typer

from upwell.edge.cases.case import CaseFacts, CollectedCase
from upwell.shared.errors import ConfigError
from upwell.shared.files import read_file, write_named
from upwell.shared.routing.hardness import RISING
from upwell.tools.cases.cli import CasesArgument, ModelOption, TagOption, WhyOption, by_ids, case_filter, chosen
from upwell.tools.cases.exporting import ExportTask, Side, new_folder
from upwell.tools.cases.exports import note_export
from upwell.tools.cases.formats import FORMATS
from upwell.tools.cases.importing import IMPORTS, import_labels
from upwell.tools.cases.labels import read_labels, write_labels
from upwell.tools.cases.source import open_source
from upwell.tools.terminal import AsJson, printable, progress

Which = Literal["training", "evaluation", "all"]
_WHICH_HELP = "training: all that chance did not choose. evaluation: the rest, by which models are judged. all: both."


def export(
    cases: CasesArgument,
    out: Annotated[Path, typer.Option("--out", help="The folder to write, not there yet.", show_default=False)],
    format: Annotated[str, typer.Option("--format", help=", ".join(FORMATS), show_default=False)],
    tag: TagOption = None,
    model: ModelOption = None,
    why: WhyOption = None,
    which: Annotated[Which, typer.Option("--set", help=_WHICH_HELP)] = "training",
    ids: Annotated[Path | None, typer.Option(help="Only the cases of this file, as `select --out` writes it.")] = None,
    side: Annotated[Side, typer.Option("--side", help="Whose answer stands in where nobody labelled.")] = "cloud",
    picture_url: Annotated[
        str | None, typer.Option(help="label-studio: what goes before each picture's name; by default its local files.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write cases for another tool: whole, or not at all.

    What people said (`upwell cases import`) is the label; else what the cloud said. Evaluation cases stay out
    unless asked for.
    """
    if format not in FORMATS:
        raise ConfigError.at(None, f"expected one of {', '.join(FORMATS)}, got {format!r}", "--format")
    source = open_source(cases)
    found = _of_set(chosen(source, case_filter(tag, model, why)), which)
    if ids is not None:
        wanted = read_file(ids, "a list of ids", 64 << 20).decode("ascii", "replace").split()
        found = by_ids(found, wanted)
    if not found:
        raise ConfigError.at(cases, f"there is no case to export (--set {which}); `upwell cases stats` counts them")
    url = f"/data/local-files/?d={out.name}/" if picture_url is None else picture_url
    with progress() as bar, new_folder(out) as folder:
        step = bar.add_task("cases", total=len(found))

        def read(id: str) -> CollectedCase:
            bar.advance(step)
            return source.read(id)

        left_out = FORMATS[format](ExportTask(found, read, read_labels(source.folder), side), folder, url)
        # Before it is there: an export that nobody knows of could not be found by who is to be forgotten.
        note_export(source.folder, out.absolute(), format, [facts.id for facts in found])
    number = len(found) - sum(left_out.values())
    if as_json:
        typer.echo(json.dumps({"out": str(out), "format": format, "cases": number, "left_out": dict(left_out)}))
        return
    typer.echo(printable(f"{number} cases in {out}"))
    for reason, count in left_out.items():
        typer.echo(f"{count} left out: {reason}")


def import_(
    cases: CasesArgument,
    file: Annotated[Path, typer.Argument(help="The labels.", show_default=False)],
    format: Annotated[str, typer.Option("--format", help=", ".join(IMPORTS), show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Take in what people said of cases: all of a file, or nothing of one with mistakes."""
    if format not in IMPORTS:
        raise ConfigError.at(None, f"expected one of {', '.join(IMPORTS)}, got {format!r}", "--format")
    source = open_source(cases)
    labels = import_labels(file, format, {facts.id: facts for facts in source.facts()})
    known = read_labels(source.folder)
    write_labels(source.folder, {**known, **labels})
    changed = sum(known.get(id) not in (None, label) for id, label in labels.items())
    if as_json:
        typer.echo(json.dumps({"labels": len(labels), "changed": changed}))
    else:
        typer.echo(f"{len(labels)} labels, {changed} of them in place of others")


def select(
    cases: CasesArgument,
    budget: Annotated[int, typer.Option(min=1, help="How many people can label.", show_default=False)],
    tag: TagOption = None,
    model: ModelOption = None,
    why: WhyOption = None,
    out: Annotated[Path | None, typer.Option(help="A file for the ids, one a line, for `export --ids`.")] = None,
    as_json: AsJson = False,
) -> None:
    """Choose what to label first: hard rows that are unlike each other, by the model's embedding or its logits.

    Of the training set, without those that are labelled.
    """
    source = open_source(cases)
    labelled = read_labels(source.folder)
    found = _of_set(chosen(source, case_filter(tag, model, why)), "training")
    found = [facts for facts in found if facts.id not in labelled]
    models = sorted({facts.model for facts in found})
    if len(models) != 1:
        what = (
            "there is no case to label"
            if not models
            else f"these are cases of {', '.join(models)}; choose one with --model"
        )
        raise ConfigError.at(cases, what)
    with progress() as bar:
        vectors = [_features(source.read(facts.id)) for facts in bar.track(found, description="cases")]
    width = max(map(len, vectors))
    features = np.full((len(vectors), width), np.nan)
    for row, vector in enumerate(vectors):
        if len(vector) == width:
            features[row] = vector
    hardness = np.array([_hardness(facts) for facts in found])
    picked = [found[index].id for index in choose(features, hardness, budget)]
    if out is not None:
        write_named(out, "".join(f"{id}\n" for id in picked).encode(), "--out")
    if as_json:
        typer.echo(json.dumps({"of": len(found), "cases": picked}))
    elif out is None:
        typer.echo("\n".join(picked))
    else:
        typer.echo(printable(f"{len(picked)} of {len(found)} cases in {out}"))


def _of_set(found: Sequence[CaseFacts], which: Which) -> list[CaseFacts]:
    return [facts for facts in found if which == "all" or facts.is_evaluated == (which == "evaluation")]


def _features(case: CollectedCase) -> list[float]:
    """The embedding that a side gave, else its scores; empty where there is neither."""
    outputs = case.edge_outputs() or case.cloud_outputs()
    for kinds in (("embedding",), ("logits",), ("probabilities",)):
        for output in case.facts.signature.outputs:
            if output.kind in kinds and output.name in outputs:
                return [float(value) for value in outputs[output.name].ravel()]
    return []


def _hardness(facts: CaseFacts) -> float:
    """Larger is harder; NaN, which is hardest, where nobody measured it."""
    if facts.hardness is None or facts.hard is None:
        return float("nan")
    return facts.hardness if facts.hard.measure in RISING else -facts.hardness


Floats = npt.NDArray[np.float64]


def choose(features: Floats, hardness: Floats, budget: int) -> Sequence[int]:
    """The indexes of `budget` rows of `features` [n, d], best first; all of them where there are no more.

    Greedy k-centre (Gonzalez 1985; as core-set selection Sener & Savarese 2018, arXiv 1708.00489), weighted by
    hardness: the hardest row comes first, then always argmax w·d, with d the Euclidean distance to the nearest row
    chosen, in features scaled to unit variance, and w = (1 + rank)/n from the easiest to the hardest.
    O(budget · n · d) time, O(n · d) memory. NaN in `hardness` counts as hardest; rows whose features are not finite
    come last.
    """
    n = len(features)
    budget = min(budget, n)
    if budget <= 0:
        return []
    known: npt.NDArray[np.bool_] = np.all(np.isfinite(features), axis=1)
    scaled = np.where(known[:, None], features, 0.0)
    scaled = (scaled - scaled.mean(axis=0)) / np.maximum(scaled.std(axis=0), 1e-12)
    order = np.argsort(np.where(np.isnan(hardness), np.inf, hardness), kind="stable")
    weights = np.empty(n)
    weights[order] = np.arange(1, n + 1) / n
    weights = np.where(known, weights, weights * 1e-9)
    chosen = [int(weights.argmax())]
    nearest = np.linalg.norm(scaled - scaled[chosen[0]], axis=1)
    taken = np.zeros(n, dtype=np.bool_)
    taken[chosen[0]] = True
    while len(chosen) < budget:
        # Of rows that are all alike the harder comes first, too.
        gain = np.where(taken, -1.0, weights * (nearest + 1e-9))
        best = int(gain.argmax())
        chosen.append(best)
        taken[best] = True
        nearest = np.minimum(nearest, np.linalg.norm(scaled - scaled[best], axis=1))
    return chosen

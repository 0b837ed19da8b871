"""`upwell cases export | import | select`: exports cases to other tools, imports labels, and selects what to label
first.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import typer

from upwell.edge.case_collection.collected_case import CaseFacts, CollectedCase
from upwell.shared.errors import ConfigError, InvalidRequest, printable
from upwell.shared.files import read_file, write_named
from upwell.shared.routing.hardness import RISING
from upwell.shared.signature.picture_quality import thumbnail
from upwell.shared.tensors import Array
from upwell.shared.units import count_of
from upwell.tools.cases.case_exports import FORMATS, ExportTask, Side, new_folder, note_export
from upwell.tools.cases.case_labels import IMPORTS, import_labels, read_labels, write_labels
from upwell.tools.cases.case_source import open_source
from upwell.tools.cases.cli import CasesArgument, ModelOption, TagOption, WhyOption, by_ids, case_filter, chosen
from upwell.tools.terminal import AsJson, progress

Which = Literal["training", "evaluation", "all"]
_THUMBNAIL_PX, _MOST_FEATURES = 16, 4096
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
    found = _of_set(chosen(source, case_filter(tag, model, why)), which)
    if ids is not None:
        wanted = read_file(ids, "a list of ids", 64 << 20).decode("ascii", "replace").split()
        found = by_ids(found, wanted)
    if not found:
        raise ConfigError.at(cases, f"there are no cases to export (--set {which}); see `upwell cases stats`")
    url = f"/data/local-files/?d={out.name}/" if picture_url is None else picture_url
    with progress() as bar, new_folder(out) as folder, source.reading() as read_case:
        step = bar.add_task("cases", total=len(found))

        def read(id: str) -> CollectedCase:
            bar.advance(step)
            return read_case(id)

        left_out = FORMATS[format](ExportTask(found, read, read_labels(source.folder), side), folder, url)
        # First the index: an export missing from it could not be found when a case must be erased.
        note_export(source.folder, out.absolute(), format, [facts.id for facts in found])
    number = len(found) - sum(left_out.values())
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
    labels = import_labels(file, format, {facts.id: facts for facts in source.facts()})
    known = read_labels(source.folder)
    write_labels(source.folder, {**known, **labels})
    changed = sum(known.get(id) not in (None, label) for id, label in labels.items())
    if as_json:
        typer.echo(json.dumps({"labels": len(labels), "changed": changed}))
    else:
        typer.echo(f"{count_of(len(labels), 'label')}, {changed} of them replacing earlier ones")


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
    with progress() as bar, source.reading() as read:
        vectors = [_features(read(facts.id)) for facts in bar.track(found, description="cases")]
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
    """The features by which rows are compared: the embedding of a side, or else the inputs (pictures as 16 x 16 grey
    levels), or else the scores; empty if there are none. A model that is to be replaced is a poor judge of
    similarity.
    """
    outputs = case.edge_outputs() or case.cloud_outputs()
    embedding = _of_kind(case, outputs, "embedding")
    if embedding:
        return embedding
    found: list[float] = []
    pictures = case.pictures()
    for name, array in case.inputs().items():
        if name in pictures:
            with contextlib.suppress(InvalidRequest):
                found += (thumbnail(pictures[name], _THUMBNAIL_PX) / 255).ravel().tolist()
        elif array.dtype.kind in "fiub":
            found += array.astype(np.float64).ravel().tolist()
    if 0 < len(found) <= _MOST_FEATURES:
        return found
    return _of_kind(case, outputs, "logits") or _of_kind(case, outputs, "probabilities")


def _of_kind(case: CollectedCase, outputs: Mapping[str, Array], kind: str) -> list[float]:
    for output in case.facts.signature.outputs:
        if output.kind == kind and output.name in outputs:
            return [float(value) for value in outputs[output.name].ravel()]
    return []


def _hardness(facts: CaseFacts) -> float:
    """Larger is harder; NaN, which counts as hardest, if not measured."""
    if facts.hardness is None or facts.hard is None:
        return float("nan")
    return facts.hardness if facts.hard.measure in RISING else -facts.hardness


Floats = npt.NDArray[np.float64]
_MOST_ROUNDS = 20


def choose(features: Floats, hardness: Floats, budget: int) -> Sequence[int]:
    """The indexes of `budget` rows of `features` [n, d]; all of them if there are no more.

    Each represents many: the rows are clustered into `budget` clusters, and the row nearest each mean is taken, those
    of the heaviest clusters first. The clusters are k-means' (Lloyd 1982) with k-means++ seeding (Arthur &
    Vassilvitskii 2007), where a row weighs (1 + rank)/n from the easiest to the hardest. So there are more clusters
    where hard rows lie close together, and few for outliers, whose labels teach nothing about other rows. Selecting
    the farthest rows (k-centre) would take just those. Deterministic. O(budget · n · d) time a round, at most 20
    rounds; O(budget · n) memory. NaN in `hardness` counts as hardest; rows with features that are not finite come
    last.
    """
    known = np.flatnonzero(np.all(np.isfinite(features), axis=1))
    unknown = np.setdiff1d(np.arange(len(features)), known)
    ranks = np.empty(len(known))
    order = np.argsort(np.where(np.isnan(hardness[known]), np.inf, hardness[known]), kind="stable")
    ranks[order] = np.arange(1, len(known) + 1) / max(1, len(known))
    if budget >= len(known):
        chosen = known[np.argsort(-ranks, kind="stable")].tolist()
        return [*chosen, *unknown.tolist()][: max(0, budget)]
    if budget <= 0:
        return []
    rows = features[known] - features[known].mean(axis=0)
    rows = rows / max(float(rows.std()), 1e-12)
    return [int(known[index]) for index in _medoids(rows, ranks, budget)]


def _medoids(rows: Floats, weights: Floats, count: int) -> list[int]:
    """The row nearest the mean of each of `count` clusters, the heaviest cluster first."""
    rng, squares = np.random.default_rng(0), (rows**2).sum(axis=1)
    centres = rows[_seeds(rows, weights, count, rng)]
    labels = np.full(len(rows), -1)
    distance = np.zeros(len(rows))
    for _ in range(_MOST_ROUNDS):
        apart = squares[:, None] - 2 * rows @ centres.T + (centres**2).sum(axis=1)
        before, labels = labels, apart.argmin(axis=1)
        distance = apart[np.arange(len(rows)), labels]
        if (before == labels).all():
            break
        heavy = np.bincount(labels, weights, count)
        sums = np.zeros_like(centres)
        np.add.at(sums, labels, rows * weights[:, None])
        centres = np.where(heavy[:, None] > 0, sums / np.maximum(heavy, 1e-300)[:, None], centres)
    heavy = np.bincount(labels, weights, count)
    nearest: dict[int, int] = {}
    for index in np.argsort(distance, kind="stable").tolist():
        nearest.setdefault(int(labels[index]), index)
    chosen = sorted(nearest.values(), key=lambda index: -heavy[labels[index]])
    taken = set(chosen)
    # A cluster may have lost all its rows to others.
    rest = [index for index in np.argsort(-weights, kind="stable").tolist() if index not in taken]
    return [*chosen, *rest[: count - len(chosen)]]


def _seeds(rows: Floats, weights: Floats, count: int, rng: np.random.Generator) -> list[int]:
    """k-means++: picks each next row with a probability proportional to its weight times its squared distance."""
    found = [int(weights.argmax())]
    nearest = ((rows - rows[found[0]]) ** 2).sum(axis=1)
    while len(found) < count:
        chances = weights * nearest
        total = float(chances.sum())
        if total <= 0:  # the remaining rows are duplicates
            break
        found.append(int(np.searchsorted(np.cumsum(chances), rng.random() * total)))
        nearest = np.minimum(nearest, ((rows - rows[found[-1]]) ** 2).sum(axis=1))
    return found

"""`upwell drift` and `upwell model reference`: what has drifted from a bundle's reference, and how that is made.

`drift` says which quantity, by how much, and since when; `reference` runs a model on typical rows and writes their
distribution into its folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import typer
from rich.table import Table

from upwell.edge.bundle.bundle import DESCRIPTION_NAME, MANIFEST_NAME, REFERENCE_NAME, Trust
from upwell.edge.config import state_dir_of
from upwell.edge.drift import FILE_NAME, MAX_BYTES
from upwell.edge.models.edge_model import EdgeModel, ServedModel
from upwell.edge.models.model_config import EdgeSide, ModelSection
from upwell.edge.models.row_measures import measured, picture_of
from upwell.edge.request.request import as_arrays
from upwell.edge.updates.model_versions.model_start import loaded
from upwell.shared.errors import EXIT_FAILED, ConfigError, InvalidRequest, ModelFailed, printable
from upwell.shared.files import read_json, write_named
from upwell.shared.routing.box_hardness import shown_chances
from upwell.shared.routing.calibration.logged_hardness import measured as logged_hardness
from upwell.shared.routing.drift.drift_reference import DriftReference, RowMeasures, reference_of
from upwell.shared.routing.drift.model_drift import ModelDrift
from upwell.shared.routing.drift.quantity_test import FALSE_ALARMS
from upwell.shared.routing.hardness import UNMOVED, Measure
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.signature.answer_agreement import label_of
from upwell.shared.signature.model_yaml import load_description
from upwell.shared.tensors import Array
from upwell.shared.units import parse_seconds
from upwell.tools.cases.case_source import NO_FOLDER
from upwell.tools.policy.collect.input_items import Item, find_items, read_item
from upwell.tools.policy.request_log_reader import read_log
from upwell.tools.request_inputs import read_given
from upwell.tools.terminal import AsJson, parsed, plain, progress, stdout_console


def drift(
    where: Annotated[
        Path,
        typer.Argument(metavar="WHERE", help="An agent.yaml, an agent's state folder, or a request log (.jsonl).",
                       show_default=False),
    ],
    bundle: Annotated[
        Path | None, typer.Option(help="For a request log: the bundle with the reference.", show_default=False)
    ] = None,
    model: Annotated[str, typer.Option(help="Only for this model.")] = "",
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Show what has drifted. Exit code 1 if anything has.

    Distinguishes the camera (brightness, sharpness, frozen), the world (classes, embedding, hardness) and the model
    (audits).
    """
    is_log = where.suffix.lower() == ".jsonl"
    if is_log and bundle is None:
        raise ConfigError.at(where, "expected the bundle that has the reference", "--bundle")
    found = _of_log(where, bundle, model) if is_log and bundle is not None else _of_device(where)
    if model and found and model not in found:
        raise ConfigError.at(where, f"nothing was counted for {model!r}; expected one of {', '.join(found)}", "--model")
    found = {name: one for name, one in found.items() if model in ("", name)}
    if not found:
        raise ConfigError.at(where, "nothing was counted; add a reference to the bundle with `upwell model reference`")
    if as_json:
        typer.echo(json.dumps({"path": str(where), "false_alarms": FALSE_ALARMS, "models": found}))
    else:
        for name, document in found.items():
            _show(name, document)
    if any(one["findings"] for one in found.values()):
        raise typer.Exit(EXIT_FAILED)


def _of_device(where: Path) -> Mapping[str, Any]:
    folder = where if where.is_dir() else state_dir_of(where, NO_FOLDER)
    path = folder / FILE_NAME
    try:
        models = read_json(path, MAX_BYTES)["models"]
        return {name: one["report"] for name, one in models.items() if one["report"] is not None}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError.at(path, f"cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError.at(path, f"not a file written by an agent: {error}") from None


def _of_log(path: Path, bundle: Path, model: str) -> Mapping[str, Any]:
    """Compare the rows of a request log, without pictures, with the reference of a bundle. Raises `ConfigError`."""
    every = read_log(path)
    lines = [line for line in every if model in ("", line.model)]
    models = sorted({line.model for line in lines})
    if not models:
        known = ", ".join(sorted({line.model for line in every}))
        raise ConfigError.at(path, f"it has no request of {model!r}; expected one of {known}", "--model")
    if len(models) > 1:
        raise ConfigError.at(path, f"these are requests of {', '.join(models)}; choose one", "--model")
    with loaded("model", ModelSection(edge=EdgeSide(bundle=bundle)), Trust((), False)) as served:
        assert served.edge is not None  # noqa: S101  it has that side alone
        reference, labels = served.edge.source.reference, next(iter(served.edge.signature.labels.values()), ())
        opened = served.edge.source.bundle
        min_score = 0.0 if opened is None else _min_score(opened.folder / DESCRIPTION_NAME)
    if reference is None:
        raise ConfigError.at(bundle, "it has no reference.json; create one with `upwell model reference`", "--bundle")
    counted = ModelDrift(reference)
    values = logged_hardness([_as_shown(line, min_score) for line in lines], reference.measure, UNMOVED).tolist()
    for line, hardness in zip(lines, values, strict=True):
        vector = None if line.logits is None else np.array(line.logits)
        label = "" if vector is None else label_of(int(vector.argmax()), labels)
        counted.add(RowMeasures(hardness=hardness, label=label, vector=vector), line.t_s)
    return {name: counted.report().document() for name in models}


def _min_score(description: Path) -> float:
    """The score from which a detector's boxes are shown; 0 if its file tells none."""
    steps = load_description(description).post if description.exists() else ()
    return next((step.boxes.min_score for step in steps if step.boxes is not None), 0.0)


def _as_shown(line: LogLine, min_score: float) -> LogLine:
    """The line with what its answer shows alone, as references and agents measure it; the log has all candidates."""
    if line.chances is None:
        return line
    shown = shown_chances(np.array(line.chances), HardSettings().box_score, min_score)
    return line.model_copy(update={"chances": tuple(shown.tolist()), "supports": None})


def _show(name: str, document: Mapping[str, Any]) -> None:
    table = Table("quantity", "rows", "", "change", "distance", "since", box=None, pad_edge=False)
    for quantity, one in document["quantities"].items():
        since = ""
        if one["moved"]:
            since = f"{_time(one['since_unix_s'])} (row {one['since']}, seen by {one['seen']})"
        moved = "moved" if one["moved"] else ""
        table.add_row(*map(plain, (quantity, one["rows"], moved, one["text"], f"{one['distance']:.2f}", since)))
    typer.echo(printable(f"{name}: {document['text'] or 'as in the reference'}"))
    stdout_console().print(table)


def _time(unix_s: float) -> str:
    """That time here; for a log whose zero is another one as it stands."""
    try:
        return datetime.fromtimestamp(unix_s).astimezone().isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{unix_s:g} s"


MOST_ROWS = 50_000


def reference(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A folder with a model, before it is packed.", show_default=False)
    ],
    data: Annotated[
        Path,
        typer.Option(help="A .npz with an array for each input, or a folder of pictures, .npy and .npz files: what the "
                     "model is made for, but not its training data.", show_default=False),
    ],
    every: Annotated[
        str, typer.Option(help="Rows within this time of each other count as one, such as frames of a video.")
    ] = "0s",
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Write reference.json, by which devices notice when their inputs or answers change.

    Holds histograms of hardness, classes, brightness and sharpness, and mean and covariance of the embedding (or else
    the logits).
    """
    every_s = parsed("--every", every, parse_seconds)
    if not folder.is_dir():
        raise ConfigError.at(folder, "expected a folder with a model")
    if (folder / MANIFEST_NAME).exists():
        raise ConfigError.at(
            folder, "it is already packed, with digests in its manifest; make the reference first, then pack"
        )
    with loaded("model", ModelSection(edge=EdgeSide(bundle=folder)), Trust((), False)) as served:
        edge = served.edge
        assert edge is not None  # noqa: S101  it has that side alone
        rows, measure = _measured(served, edge, data)
        made = reference_of(rows, edge_digest=edge.digest, measure=measure, every_s=every_s)
    write_named(folder / REFERENCE_NAME, made.text().encode())
    _report(made, len(rows), folder / REFERENCE_NAME, as_json)


def _measured(served: ServedModel, edge: EdgeModel, data: Path) -> tuple[list[RowMeasures], Measure]:
    """The measures of every row, and the hardness measure used. Raises `ConfigError`."""
    rows: list[RowMeasures] = []
    measure: Measure | None = None
    count, requests = _requests(served, data)
    if count > MOST_ROWS:
        raise ConfigError.at(data, f"{count} rows, more than {MOST_ROWS}; use fewer", "--data")
    with progress() as bar:
        for name, inputs in bar.track(requests, total=count, description="rows"):
            try:
                outputs = edge.run_now(inputs).outputs
            except (InvalidRequest, ModelFailed) as error:
                raise ConfigError.at(data, f"the model does not accept {name}: {error}", "--data") from None
            if measure is None:
                known = edge.scorer.score_all(outputs, HardSettings(), 1)[0]
                measure = "margin" if "margin" in known else cast("Measure", next(iter(known), "margin"))
            picture = picture_of(edge.signature, inputs, 0)
            rows.append(measured(edge.signature, edge.scorer, outputs, picture, measure))
    return rows, measure or "margin"


def _requests(served: ServedModel, data: Path) -> tuple[int, Iterator[tuple[str, Mapping[str, Array]]]]:
    """The number of requests of one row each, and these, each with its name in messages."""
    if data.is_dir():
        items = find_items(data)
        return len(items), ((item.name, _of_item(item, served)) for item in items)
    edge = served.edge
    assert edge is not None  # noqa: S101  the caller has it
    if data.suffix.lower() != ".npz":
        raise ConfigError.at(data, "expected a .npz with an array for each input, or a folder of pictures", "--data")
    try:
        arrays = as_arrays(read_given(data, "--data"), served)
        known = {one.name for one in edge.signature.inputs}
        arrays = {name: array for name, array in arrays.items() if name in known}  # the file may also hold labels
        count = edge.signature.check_inputs(arrays)
    except InvalidRequest as error:
        raise ConfigError.at(data, str(error), "--data") from None
    signature = edge.signature
    rows = (signature.select_rows(arrays, (row,)) if signature.has_rows else arrays for row in range(count))
    return count, ((f"row {row}", inputs) for row, inputs in enumerate(rows))


def _of_item(item: Item, served: ServedModel) -> Mapping[str, Array]:
    try:
        return read_item(item, served)
    except InvalidRequest as error:
        raise ConfigError.at(item.path, str(error), "--data") from None


def _report(made: DriftReference, rows: int, path: Path, as_json: bool) -> None:
    counts = {name: sum(one.counts) for name, one in made.quantities.items()}
    if as_json:
        typer.echo(json.dumps({"path": str(path), "rows": rows, "measure": made.measure, "quantities": counts}))
        return
    table = Table("quantity", "rows counted", "bins", box=None, pad_edge=False)
    for name, one in made.quantities.items():
        table.add_row(plain(name), str(counts[name]), str(len(one.counts)))
    stdout_console().print(table)
    typer.echo(printable(f"{path}: from {rows} rows, a third of which set the bins. Pack the bundle next."))

"""`upwell drift`: which quantity has drifted from the bundle's reference, by how much, and since when."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from upwell.edge.bundle.bundle import Trust
from upwell.edge.config import AgentConfig
from upwell.edge.drift.drift_watch import FILE_NAME, MAX_BYTES
from upwell.edge.models.model_config import EdgeSide, ModelSection
from upwell.edge.updates.model_start import loaded
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import EXIT_FAILED, ConfigError
from upwell.shared.files import read_json
from upwell.shared.routing.drift.drift_reference import RowMeasures
from upwell.shared.routing.drift.model_drift import ModelDrift
from upwell.shared.routing.drift.quantity_test import FALSE_ALARMS
from upwell.shared.signature.answer_rows import label_of
from upwell.tools.cases.case_source import state_dir_of
from upwell.tools.policy.request_log_reader import read_log
from upwell.tools.terminal import AsJson, plain, printable, table_console


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
    folder = where if where.is_dir() else state_dir_of(load_yaml(where, AgentConfig), where)
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
    lines = [line for line in read_log(path) if model in ("", line.model)]
    models = sorted({line.model for line in lines})
    if len(models) > 1:
        raise ConfigError.at(path, f"these are requests of {', '.join(models)}; choose one", "--model")
    with loaded("model", ModelSection(edge=EdgeSide(bundle=bundle)), Trust((), False)) as served:
        assert served.edge is not None  # noqa: S101  it has that side alone
        reference, labels = served.edge.source.reference, next(iter(served.edge.signature.labels.values()), ())
    if reference is None:
        raise ConfigError.at(bundle, "it has no reference.json; create one with `upwell model reference`", "--bundle")
    counted = ModelDrift(reference)
    for line in lines:
        vector = None if line.logits is None else np.array(line.logits)
        label = "" if vector is None else label_of(int(vector.argmax()), labels)
        hardness = line.hardness.get(reference.measure, float("nan"))
        counted.add(RowMeasures(hardness=hardness, label=label, vector=vector), line.t_s)
    return {name: counted.report().document() for name in models}


def _show(name: str, document: Mapping[str, Any]) -> None:
    table = Table("quantity", "rows", "", "change", "distance", "since", box=None, pad_edge=False)
    for quantity, one in document["quantities"].items():
        since = ""
        if one["moved"]:
            at = datetime.fromtimestamp(one["since_unix_s"]).astimezone().isoformat(timespec="seconds")
            since = f"{at} (row {one['since']}, seen by {one['seen']})"
        moved = "moved" if one["moved"] else ""
        table.add_row(*map(plain, (quantity, one["rows"], moved, one["text"], f"{one['distance']:.2f}", since)))
    typer.echo(printable(f"{name}: {document['text'] or 'as in the reference'}"))
    table_console().print(table)

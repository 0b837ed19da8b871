"""The terminal output of a service that is ready: its models and its addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from upwell.cloud.service.model_loader import BrokenModel, CloudModel
from upwell.shared.units import count_of


@dataclass(frozen=True)
class ModelLine:
    """One version of a model as it is shown; `reason` says why it is not ready, "" if it is."""

    name: str
    version: str
    engine: str = ""
    instances: int = 0
    max_batch: int = 0
    digest: str = ""
    reason: str = ""

    @classmethod
    def of(cls, model: CloudModel | BrokenModel) -> ModelLine:
        """The line of a version that was loaded or is broken."""
        if isinstance(model, BrokenModel):
            return cls(model.name, model.version, reason=model.reason)
        own = model.settings
        engine = f"{model.engine.version}, {', '.join(own.providers) or own.device}"
        return cls(model.name, model.version, engine, own.instances, own.max_batch, model.digest)


@dataclass(frozen=True)
class Listening:
    """The addresses on which a process serves, with real ports instead of 0; `metrics` is the page's URL."""

    grpc: tuple[str, ...]
    http: tuple[str, ...] = ()
    metrics: str = ""


def announce(console: Console, models: Sequence[ModelLine], where: Listening, workers: int = 1) -> None:
    """Show what is served and where: a table on a terminal, and the lines that tools wait for everywhere."""
    if where.http:
        console.print(f"HTTP on {', '.join(where.http)}", markup=False)
    if where.metrics:
        console.print(f"metrics on {where.metrics}", markup=False)
    if console.is_terminal:
        console.print(_table(models))
    count = len({model.name for model in models if not model.reason})
    each = f", {workers} workers" if workers > 1 else ""
    text = f"serving on {', '.join(where.grpc)} ({count_of(count, 'model')}{each})"
    console.print(text, markup=False)


def _table(models: Sequence[ModelLine]) -> Table:
    table = Table("model", "version", "engine", "instances", "largest batch", "digest")
    for model in models:
        if model.reason:
            table.add_row(model.name, model.version, "not ready", "", "", escape(model.reason))
        else:
            counts = (str(model.instances), str(model.max_batch))
            digest = model.digest.removeprefix("sha256:")[:12]
            table.add_row(model.name, model.version, model.engine, *counts, digest)
    return table

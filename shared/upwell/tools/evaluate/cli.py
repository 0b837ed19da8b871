"""`upwell evaluate A B`: is the next model better, and may it be rolled out?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from upwell.shared.errors import EXIT_FAILED, ConfigError
from upwell.shared.routing.policy.settings import HardSettings
from upwell.tools.cases.labels import read_labels
from upwell.tools.cases.source import open_source
from upwell.tools.evaluate.comparing import compare
from upwell.tools.evaluate.running import EvaluationRun, Judged, answers_of, truths
from upwell.tools.terminal import AsJson, plain, printable, progress, share, table_console


def evaluate(
    a: Annotated[Path, typer.Argument(metavar="A", help="The bundle in use, or a model file.", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="The one to compare with it.", show_default=False)],
    cases: Annotated[
        Path,
        typer.Option(
            "--cases", help="An agent.yaml, its state folder, or where cases came home to.", show_default=False
        ),
    ],
    model: Annotated[
        str, typer.Option("--model", help="The model whose cases are meant, where there are several.")
    ] = "",
    cloud_is_right: Annotated[
        bool, typer.Option("--cloud-is-right", help="Where nobody labelled a case, what the cloud said is right.")
    ] = False,
    group: Annotated[str, typer.Option(help="Apart for each value of this tag, too.")] = "",
    max_risk: Annotated[
        str, typer.Option(help="For the share that would go up: at most so much stays and is wrong.")
    ] = "2%",
    gate: Annotated[
        bool, typer.Option("--gate", help="Exit code 1 unless B is surely not worse by more than the margin.")
    ] = False,
    margin: Annotated[str, typer.Option(help="For --gate: so much worse is borne.")] = "1%",
    as_json: AsJson = False,
) -> None:
    """Compare two models on the evaluation set, the cases that chance chose: accuracy over all requests with 95 %
    intervals, mAP for detectors, error for numbers.
    """
    allowed, risk = share("--margin", margin), share("--max-risk", max_risk)
    source = open_source(cases)
    found = [facts for facts in source.facts() if facts.is_evaluated and model in ("", facts.model)]
    models = sorted({facts.model for facts in found})
    if len(models) > 1:
        raise ConfigError.at(cases, f"these are cases of {', '.join(models)}; choose one with --model")
    judged = truths(found, read_labels(source.folder), source.read, by_cloud=cloud_is_right)
    if not judged:
        raise ConfigError.at(
            cases, f"of {len(found)} evaluation cases none has a label; `upwell cases import` brings some, or "
            "--cloud-is-right takes what the cloud said",
        )  # fmt: skip
    hard = next((case.facts.hard for case in judged if case.facts.hard is not None), None)
    settings = HardSettings() if hard is None else HardSettings(measure=hard.measure, temperature=hard.temperature)  # type: ignore[arg-type]  # a measure of the policy
    names: dict[str, int] = {}
    with progress() as bar:
        task = bar.add_task("cases", total=2 * len(judged))
        trial = EvaluationRun([case.facts for case in judged], source.read, settings, names, lambda: bar.advance(task))
        before, after = (answers_of(path, trial) for path in (a, b))
    document = compare(before, after, judged, names, group, risk)
    document |= {"without_label": len(found) - len(judged), "covers": _covered(judged)}
    low = document["difference"]["low"]
    passes = low is not None and low >= -allowed
    if gate:
        document |= {"margin": allowed, "passes": passes}
    if as_json:
        typer.echo(json.dumps(document))
    else:
        _show(document)
    if gate and not passes:
        raise typer.Exit(EXIT_FAILED)


def _covered(judged: list[Judged]) -> str:
    """Which requests the evaluation set stands for: audits never choose a row that goes up."""
    return "all requests" if all(case.facts.sample > 0 for case in judged) else "requests that the device kept"


def _show(document: dict[str, Any]) -> None:
    table = Table("", "A", "B", box=None, pad_edge=False)
    table.add_row(plain(document["measure"]), *map(_interval, document["quality"]))
    for kind in ("classes", "groups"):
        for key, sides in document.get(kind, {}).items():
            table.add_row(plain(f"  {key or '–'}"), *map(_interval, sides))
    if "share_up" in document["a"]:
        table.add_row(f"up at {document['max_risk']:.1%} risk", *(f"{document[side]['share_up']:.1%}" for side in "ab"))
    table_console().print(table)
    difference = document["difference"]
    typer.echo(printable(f"B − A: {_interval(difference)}, p = {difference['p']:.2g} (sign-flip test)"))
    typer.echo(f"{document['cases']} cases, which stand for {document['covers']}")
    typer.echo(f"{document['without_label']} more have no label")
    if "passes" in document:
        said = "passes: B is not worse" if document["passes"] else "fails: B may be worse"
        typer.echo(f"gate {said} by more than {document['margin']:.1%}")


def _interval(shown: dict[str, Any]) -> str:
    low, high = ("?" if shown[end] is None else f"{shown[end]:.3f}" for end in ("low", "high"))
    return f"{'?' if shown['mean'] is None else format(shown['mean'], '.3f')} [{low}, {high}]"

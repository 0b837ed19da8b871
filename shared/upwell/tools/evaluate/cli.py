"""`upwell evaluate A B`: is the next model better, and may it be rolled out?"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from upwell.edge.bundle.bundle import Trust
from upwell.edge.updates.releases.stored_release import StoredRelease
from upwell.edge.updates.sources.base import FetchFailed
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import EXIT_FAILED, ConfigError, ExtraMissing, printable
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.units import count_of
from upwell.tools.cases.case_labels import form_of, read_labels
from upwell.tools.cases.case_source import open_source
from upwell.tools.evaluate.bundle_comparison import Replay, compare, replayed, weights_of
from upwell.tools.evaluate.evaluation_run import EvaluationRun, Judged, answers_of, truths
from upwell.tools.policy.simulate_cli import START, read_scene
from upwell.tools.terminal import AsJson, plain, progress, share, stdout_console

_CLOUD_IS_RIGHT = (
    "Take the cloud's answer as correct for cases without a label. With --log, those that go up are then right anyway."
)


def evaluate(
    a: Annotated[
        Path, typer.Argument(metavar="A", help="The bundle in use, a model file or a release.", show_default=False)
    ],
    b: Annotated[
        Path,
        typer.Argument(metavar="B", help="The bundle, model file or release to compare with it.", show_default=False),
    ],
    cases: Annotated[
        Path,
        typer.Option(
            "--cases", help="An agent.yaml, its state folder, or a folder of delivered cases.", show_default=False
        ),
    ],
    model: Annotated[str, typer.Option("--model", help="The model whose cases to use, if there are several.")] = "",
    cloud_is_right: Annotated[bool, typer.Option("--cloud-is-right", help=_CLOUD_IS_RIGHT)] = False,
    group: Annotated[str, typer.Option(help="Also report each value of this tag separately.")] = "",
    releases: Annotated[
        str, typer.Option(metavar="SOURCE", help="A and B are release numbers in this folder or https://….")
    ] = "",
    root: Annotated[
        Path | None, typer.Option(metavar="ROOT.json", help="For --releases: the root metadata that devices trust.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option(metavar="LOG", help="Requests to replay with each: lateness, share sent up, cost.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For --log: the policy; a release's own takes precedence.")
    ] = None,
    rtt: Annotated[str, typer.Option(help="For --log: the link's round trip.")] = "60ms",
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For --log: the uplink's capacity, as for `policy simulate`.")
    ] = None,
    uplink: Annotated[str | None, typer.Option(metavar="RATE", help="For --log: a constant rate instead.")] = None,
    max_risk: Annotated[
        str, typer.Option(help="Report the share to offload so that at most this share stays and is wrong.")
    ] = "2%",
    gate: Annotated[
        bool, typer.Option("--gate", help="Exit with 1 unless B is certainly not worse by more than the margin.")
    ] = False,
    margin: Annotated[str, typer.Option(help="For --gate: the margin by which B may be worse.")] = "1%",
    as_json: AsJson = False,
) -> None:
    """Compare two models or releases on the evaluation set of randomly sampled cases.

    Reports accuracy over all requests with 95 % intervals, mAP for detectors, error for numbers; with --log also
    lateness, share sent to the cloud and cost.
    """
    allowed, risk = share("--margin", margin), share("--max-risk", max_risk)
    if log is None and (policy or trace or uplink):
        raise ConfigError.at(None, "policy and link options need --log")
    scene = None if log is None else read_scene(log, trace, uplink, rtt, START)
    local = Policy() if policy is None else load_yaml(policy, Policy)
    name, judged, settings, unlabelled, unseen = _judged(cases, model, by_cloud=cloud_is_right)
    logged = {name} if scene is None else {one.line.model for one in scene.requests}
    if name not in logged:
        raise ConfigError.at(log, f"it has no request of {name!r}; it has some of {', '.join(sorted(logged))}", "--log")
    names: dict[str, int] = {}
    with ExitStack() as unpacked, progress() as bar, open_source(cases).reading() as read:
        sides = _sides((a, b), name, _Releases(releases, root), unpacked)
        task = bar.add_task("cases", total=2 * len(judged))
        trial = EvaluationRun([case.facts for case in judged], read, settings, names, lambda: bar.advance(task))
        before, after = (answers_of(side.path, trial) for side in sides)
    document = compare(before, after, judged, names, group, risk)
    document |= {"without_label": unlabelled, "covers": _covered(judged, unseen)}
    if scene is not None:
        replay = Replay(scene, name, (sides[0].policy_over(local), sides[1].policy_over(local)))
        inclusion = weights_of([case.chance for case in judged])
        document["replay"] = replayed(replay, (before, after), judged, inclusion)
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


@dataclass(frozen=True)
class _Releases:
    source: str
    root: Path | None


@dataclass(frozen=True)
class _Side:
    """A bundle or a model file, and the policy of a release."""

    path: Path
    stored: StoredRelease | None = None

    def policy_over(self, local: Policy) -> Policy:
        """The policy with the release's on top."""
        return local if self.stored is None else self.stored.policy_over(local)


def _sides(paths: tuple[Path, Path], model: str, releases: _Releases, unpacked: ExitStack) -> tuple[_Side, _Side]:
    """The two sides. Releases are verified, and stay unpacked as long as `unpacked` is open. Raises `ConfigError`."""
    if (releases.root is None) != (not releases.source):
        raise ConfigError.at(None, "expected --releases and --root together")
    if releases.root is None:
        return _Side(paths[0]), _Side(paths[1])
    with ExtraMissing.on_import("release", "releases need the package PACKAGE"):
        from upwell.tools.release.release_check import checked
    found = []
    for path in paths:
        if not str(path).isdecimal():
            raise ConfigError.at(None, f"{str(path)!r} is not a release; with --releases expected its number")
        scratch = Path(unpacked.enter_context(tempfile.TemporaryDirectory()))
        try:
            stored = checked(
                releases.source, releases.root, scratch, int(str(path)), Trust((), False), None, lambda _: None
            )
        except FetchFailed as error:
            raise ConfigError.at(None, f"release {path}: {error}", "--releases") from None
        if model not in stored.bundles:
            there = ", ".join(sorted(stored.bundles)) or "none"
            raise ConfigError.at(None, f"release {path} has no bundle {model!r}; it has: {there}", "--releases")
        found.append(_Side(stored.bundles[model].folder, stored))
    return found[0], found[1]


def _judged(cases: Path, model: str, *, by_cloud: bool) -> tuple[str, list[Judged], HardSettings, int, float]:
    """The model, its evaluation cases with a known correct answer, how hardness is measured, the number of other
    cases, and the share of the requests that no case stands for. Raises `ConfigError`.
    """
    source = open_source(cases)
    every = [facts for facts in source.facts() if facts.is_evaluated]
    found = [facts for facts in every if model in ("", facts.model)]
    if not every:
        raise ConfigError.at(
            cases, "there are no evaluation cases; collect some with `random` or `audit` in the policy"
        )
    models = sorted({facts.model for facts in found})
    if not found:
        known = ", ".join(sorted({facts.model for facts in every}))
        raise ConfigError.at(cases, f"there are no evaluation cases of {model!r}; there are some of {known}", "--model")
    if len(models) > 1:
        raise ConfigError.at(cases, f"these are cases of {', '.join(models)}; choose one with --model")
    answers = {facts.signature.answer for facts in found}
    if not any(one is not None and form_of(one) for one in answers):
        given = ", ".join(sorted({"nothing" if one is None else one.kind for one in answers}))
        raise ConfigError.at(cases, f"the model gives {given}; only classes, boxes and numbers can be compared")
    with progress() as bar, source.reading() as read:
        tracked = bar.track(found, description="answers")
        judged, unseen = truths(tracked, read_labels(source.folder), read, by_cloud=by_cloud)
    if not judged:
        raise ConfigError.at(
            cases,
            f"none of the {len(found)} evaluation cases has a label; import labels with `upwell cases import`, "
            "or take the cloud's answers with --cloud-is-right",
        )
    hard = next((case.facts.hard for case in judged if case.facts.hard is not None), None)
    settings = HardSettings()
    if hard is not None:
        settings = HardSettings(
            measure=hard.measure,  # type: ignore[arg-type]  # a measure of the policy
            temperature=hard.temperature,
            bias=hard.bias,
            support=hard.support,
            hidden_slope=hard.hidden_slope,
        )
    return models[0], judged, settings, len(found) - len(judged), unseen


_REPLAYED: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "replayed: late": lambda one: f"{one['late']:.1%}",
    "  right and in time": lambda one: "–" if one["right"] is None else f"{one['right']:.1%}",
    "  99th percentile": lambda one: "–" if one["p99_s"] is None else f"{one['p99_s'] * 1e3:.0f} ms",
    "  sent up": lambda one: f"{one['sent_up']:.1%}, {one['bytes_up'] / 1e6:.1f} MB",
    "  cost": lambda one: f"{one['cost']:.4g}",
}


def _covered(judged: list[Judged], unseen: float) -> str:
    """Which requests the evaluation set represents: audits never sample a row that goes to the cloud."""
    which = "all requests" if all(case.facts.sample > 0 for case in judged) else "requests that the device kept"
    return f"{1 - unseen:.1%} of {which}" if unseen else which


def _show(document: dict[str, Any]) -> None:
    table = Table("", "A", "B", box=None, pad_edge=False)
    table.add_row(plain(document["measure"]), *map(_interval, document["quality"]))
    for kind in ("classes", "groups"):
        for key, sides in document.get(kind, {}).items():
            table.add_row(plain(f"  {key or '–'}"), *map(_interval, sides))
    if "share_up" in document["a"]:
        table.add_row(f"up at {document['max_risk']:.1%} risk", *(f"{document[side]['share_up']:.1%}" for side in "ab"))
    if "replay" in document:
        for title, cell in _REPLAYED.items():
            table.add_row(title, *(cell(document["replay"][side]) for side in "ab"))
    stdout_console().print(table)
    difference = document["difference"]
    test = "bootstrap" if document["measure"] == "mAP" else "sign-flip test"
    typer.echo(printable(f"B − A: {_interval(difference)}, p = {difference['p']:.2g} ({test})"))
    typer.echo(f"{count_of(document['cases'], 'case')}, representing {document['covers']}")
    typer.echo(f"{document['without_label']} more have no label")
    if "passes" in document:
        said = "passes: B is not worse" if document["passes"] else "fails: B may be worse"
        is_number = document["measure"] not in ("accuracy", "mAP")
        typer.echo(f"gate {said} by more than {document['margin']:{'g' if is_number else '.1%'}}")


def _interval(shown: dict[str, Any]) -> str:
    low, high = ("?" if shown[end] is None else f"{shown[end]:.3f}" for end in ("low", "high"))
    return f"{'?' if shown['mean'] is None else format(shown['mean'], '.3f')} [{low}, {high}]"

"""`upwell policy collect`: records the answers of device and cloud to the same items."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from upwell.edge.config import AgentConfig, CloudSection
from upwell.edge.models.edge_model import ServedModel
from upwell.edge.models.model_config import ModelSection
from upwell.edge.updates.model_versions.model_start import loaded
from upwell.edge.uplink.egress import METADATA_BYTES
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import EXIT_FAILED, ConfigError
from upwell.shared.oip.grpc.client.client import RemoteError
from upwell.shared.oip.introspection import read_seen
from upwell.shared.oip.open_client import Client, open_client
from upwell.shared.routing.policy.compiled_policy import CompiledPolicy, RequestFacts
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.signature.answer_agreement import Judge
from upwell.shared.signature.signature import UplinkEncoding
from upwell.shared.signature.uplink_pictures import NO_RESIZES, Resizes
from upwell.shared.units import count_of
from upwell.tools.policy.collect.collection_run import (
    ANSWER_S,
    AskedCloud,
    Asker,
    Collection,
    CollectionReport,
    check_same,
    opened,
)
from upwell.tools.policy.collect.input_items import Item, KnownLabels, find_items, read_boxes, read_classes
from upwell.tools.terminal import AsJson, plain, print_error, progress, stdout_console

_SHOWN = 5
_LABELS = (
    "CSV file,label; for detections file,label,x1,y1,x2,y2 in fractions, or COCO JSON; "
    "without it the cloud's answers count as correct."
)

_QUALITY = (
    "Ask about pictures at this quality too, in the format of `uplink` in model.yaml; repeat it. `calibrate` then says "
    "what each costs."
)


def collect(
    agent: Annotated[Path, typer.Argument(metavar="AGENT_YAML", help="The agent.yaml that names both sides.")],
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model, by its name for callers.")],
    data: Annotated[Path, typer.Option(metavar="DIR", help="Folder of pictures, .npy or .npz files, one item each.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The log to write or to continue.")],
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=_LABELS,
        ),
    ] = None,
    quality: Annotated[list[int] | None, typer.Option(min=1, max=100, metavar="QUALITY", help=_QUALITY)] = None,
    as_json: AsJson = False,
) -> None:
    """Run both sides of MODEL on every item of a folder, and write their answers as a request log.

    Collected lines stay: after an interrupt the same command continues with the missing items.
    """
    config = load_yaml(agent, AgentConfig)
    section, cloud = _sides(agent, config, model)
    policy = CompiledPolicy(load_yaml(config.policy, Policy) if config.policy else Policy())
    items = find_items(data)
    with loaded(model, section, config.agent.trust.trust) as served:
        client = open_client(cloud.endpoint, cloud.security, max_message_bytes=config.agent.max_message)
        try:
            side = AskedCloud(client, _resizes(client, served, policy), _encodings(served, quality or []))
            report = _collected(served, side, policy, items, labels, out)
        finally:
            client.close()
    if as_json:
        typer.echo(json.dumps(asdict(report)))
    else:
        _show(report)
    if (report.skipped or report.unanswered) and not report.collected + report.already_there:
        raise typer.Exit(EXIT_FAILED)


def _sides(path: Path, config: AgentConfig, name: str) -> tuple[ModelSection, CloudSection]:
    """The model's section and the cloud's. Raises `ConfigError` unless there are both sides to ask."""
    section = config.models.get(name)
    if section is None:
        raise ConfigError.at(path, f"no model {name!r}; expected one of {', '.join(config.models)}", "models")
    for side, is_there in (("edge", section.edge), ("cloud", section.cloud)):
        if is_there is None:
            raise ConfigError.at(
                path,
                f"it has no {side} side; collecting asks both",
                f"models.{name}",
            )
    if config.cloud is None:
        raise ConfigError.at(path, "this key is missing; expected {endpoint: HOST:PORT}", "cloud")
    return section, config.cloud


def _collected(
    model: ServedModel, cloud: AskedCloud, policy: CompiledPolicy, items: list[Item], labels: Path | None, out: Path
) -> CollectionReport:
    assert model.edge is not None  # noqa: S101  `_sides` made sure
    signature = model.edge.signature
    hard = policy.judge(RequestFacts(model.name, {}, 0, time.time())).settings.hard or HardSettings()
    is_detector = signature.scores is None and any(output.kind == "detections" for output in signature.outputs)
    judge = Judge(signature, box_score=hard.box_score, with_labels=labels is not None and not is_detector)
    known = KnownLabels(frozenset(item.name for item in items), judge.output.labels, judge.classes)
    truth = None if labels is None else (read_boxes if is_detector else read_classes)(labels, known)
    labelled = [item for item in items if truth is None or item.name in truth]
    with opened(out) as log:
        check_same(log.former.line, model.edge, model.name, with_labels=truth is not None)
        missing = [item for item in labelled if item.name not in log.former.items]
        report = CollectionReport(
            out=str(out),
            truth="cloud" if truth is None else "labels",
            already_there=len(labelled) - len(missing),
            unlabelled=len(items) - len(labelled),
        )
        _run(Collection(Asker(model, cloud, policy, judge, truth), log, report), missing)
    return report


def _resizes(client: Client, model: ServedModel, policy: CompiledPolicy) -> Resizes:
    """How the cloud's model resizes pictures; a cloud that does not say so takes them unchanged."""
    if policy.judge(RequestFacts(model.name, {}, METADATA_BYTES, time.time())).egress_rule:
        return NO_RESIZES
    try:
        return read_seen(client.config_parameters(model.cloud_model, ANSWER_S)).resizes
    except RemoteError:
        return NO_RESIZES


def _encodings(model: ServedModel, qualities: Sequence[int]) -> tuple[UplinkEncoding, ...]:
    """The encodings of pictures in these qualities and in model.yaml's, the best first. Raises `ConfigError`."""
    if not qualities:
        return ()
    assert model.edge is not None  # noqa: S101  `_sides` made sure
    found = [one.uplink for one in model.edge.signature.inputs if one.kind == "image" and one.uplink is not None]
    if not found or found[0].encode not in ("jpeg", "webp"):
        text = "model.yaml names no format that has a quality; expected an input with uplink: {encode: jpeg} or webp"
        raise ConfigError.at(None, text, "--quality")
    own = found[0].quality
    if max(qualities) > own:
        raise ConfigError.at(None, f"expected at most {own}, the quality that model.yaml names", "--quality")
    return tuple(replace(found[0], quality=one, recode=True) for one in sorted({own, *qualities}, reverse=True))


def _run(collection: Collection, items: list[Item]) -> None:
    try:
        with progress() as bar:
            task = bar.add_task("asking both sides", total=len(items))
            collection.run(items, lambda: bar.advance(task))
    except KeyboardInterrupt:
        done = collection.report.collected
        kept = f"{done} of {len(items)} items are in the log"
        print_error(f"interrupted: {kept}; the same command continues with the rest")
        raise


def _show(report: CollectionReport) -> None:
    console = stdout_console()
    there = f", {report.already_there} were already there" if report.already_there else ""
    console.print(f"{count_of(report.collected, 'item')} collected in {report.out}{there}", markup=False)
    if report.unlabelled:
        console.print(f"{count_of(report.unlabelled, 'item')} left out, without a label")
    for found, what in (
        (report.skipped, "skipped"),
        (report.unanswered, "without an answer from the cloud"),
        (report.kept_by_egress_rule, "not sent, by a rule of the policy with egress: deny"),
    ):
        if found:
            console.print(f"{len(found)} {what}:")
        for name, why in list(found.items())[:_SHOWN]:
            console.print(plain(f"  {name}: {why}"))
        if len(found) > _SHOWN:
            console.print(f"  and {len(found) - _SHOWN} more")
    if report.truth == "cloud":
        console.print("no labels: the cloud's answers count as correct")
    for side, accuracy in (("edge", report.edge_accuracy), ("cloud", report.cloud_accuracy)):
        if accuracy is not None:
            console.print(f"{side} right: {accuracy:.1%}")

"""`upwell release`: init, add, sign, publish, show, verify."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.table import Table
from rich.text import Text

from upwell.edge.bundle.bundle import Trust
from upwell.edge.bundle.bundle_signature import private_key
from upwell.edge.bundle.source_address import check_repository
from upwell.edge.updates.releases.release_document import ReleaseDocument
from upwell.edge.updates.releases.stored_release import StoredRelease
from upwell.shared.errors import EXIT_FAILED, ConfigError, ExtraMissing
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.simulation.simulation_report import SimulationReport
from upwell.shared.routing.simulation.strategies import Scene, routed
from upwell.shared.units import parse_seconds
from upwell.tools.bundle.cli import passphrase_of_key, refused
from upwell.tools.policy.simulate_cli import START, FleetShares, read_scene, with_fleet_shares
from upwell.tools.release.release_misfits import ReleaseParts, misfits
from upwell.tools.terminal import AsJson, key_values, parsed, plain, print_error, progress, stdout_console

if TYPE_CHECKING:
    from upwell.tools.release.repository_editor import RepositoryEditor

FOLDER = typer.Argument(metavar="FOLDER", help="The folder of releases.", show_default=False)
FolderArgument: TypeAlias = Annotated[Path, FOLDER]
KeyOption: TypeAlias = Annotated[Path, typer.Option("--key", metavar="KEY.pem", help="The private key that signs.")]
_PublicKeys: TypeAlias = list[Path]


def init(
    folder: FolderArgument,
    root: Annotated[_PublicKeys, typer.Option(metavar="PUB.pem", help="A key that may change keys; may be repeated.")],
    targets: Annotated[_PublicKeys, typer.Option(metavar="PUB.pem", help="A key that signs releases, kept offline.")],
    online: Annotated[_PublicKeys, typer.Option(metavar="PUB.pem", help="A key of the machine that publishes.")],
    root_threshold: Annotated[
        int | None, typer.Option(help="Required root signatures. Default: more than half.")
    ] = None,
    targets_threshold: Annotated[int, typer.Option(help="Required signatures of a release.")] = 1,
    days: Annotated[float, typer.Option(min=0.0, help="When the root expires, from now.")] = 730.0,
    rotate: Annotated[bool, typer.Option("--rotate", help="Draft the next root, with these keys instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """Draft the root of a folder of releases: who signs what. Then sign it (`sign`) and publish it (`publish`).

    All keys are public ones in PEM (Ed25519, P-256, P-384 or P-521). The private keys stay where they are used.
    """
    with _needs():
        from upwell.tools.release.repository_editor import RepositoryEditor, RoleKeys, in_days
    editor = RepositoryEditor(folder)
    threshold = len(root) // 2 + 1 if root_threshold is None else root_threshold
    keys = RoleKeys(root, threshold, targets, targets_threshold, online)
    editor.begin(keys, in_days(time.time(), days), rotate=rotate)
    _report_drafts(editor, "drafted the root", {}, as_json)


def add(
    folder: FolderArgument,
    bundle: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]BUNDLE", help="An archive, a folder, or NAME=oci://…@sha256:…; may be repeated."),
    ] = None,
    policy: Annotated[Path | None, typer.Option(metavar="FILE", help="The routing policy.")] = None,
    calibrations: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A calibrations.yaml, in addition to the policy's calibrations.")
    ] = None,
    pipelines: Annotated[Path | None, typer.Option(metavar="FILE", help="A pipelines.yaml.")] = None,
    cloud: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL=sha256:…", help="A cloud model it was made with; may be repeated."),
    ] = None,
    like: Annotated[
        int | None, typer.Option(metavar="N", help="Take the parts not named from release N, an old one or the latest.")
    ] = None,
    also: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Another model that devices have; may be repeated.")
    ] = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="The name of its devices. Default: as before, or FOLDER's.")
    ] = "",
    back_within: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long a device may be sent back. Default: 24h; 0 for never.")
    ] = None,
    days: Annotated[float, typer.Option(min=0.0, help="When the signature on the releases expires, from now.")] = 365.0,
    log: Annotated[
        Path | None, typer.Option(metavar="LOG", help="Requests, to simulate the policy before and after.")
    ] = None,
    rtt: Annotated[str, typer.Option(help="With --log: the link's round trip.")] = "60ms",
    uplink: Annotated[str, typer.Option(metavar="RATE", help="With --log: the link's rate.")] = "20Mbps",
    fleet_share: FleetShares = None,
    as_json: AsJson = False,
) -> None:
    """Draft the next release. If its parts do not fit together, nothing is drafted and the exit code is 1.

    They fit if calibrations are for these models, policy and pipelines name existing models and labels, and no rule
    with `egress: deny` is lost by accident.
    """
    with _needs():
        from upwell.tools.release.release_maker import ReleaseContents, made
        from upwell.tools.release.repository_editor import RepositoryEditor, in_days, sequences
    editor = RepositoryEditor(folder)
    editor.root(with_draft=True)
    targets = editor.targets()
    known = sequences(targets.signed) if targets is not None else []
    wanted = ReleaseContents(
        _named_bundles(bundle or []),
        policy,
        calibrations,
        pipelines,
        key_values("--cloud", cloud),
        like,
        name,
        None if back_within is None else parsed("--back-within", back_within, parse_seconds),
    )
    with refused(as_json), progress() as bar, made(editor, wanted, (known or [0])[-1] + 1) as new:
        bar.add_task("checking", total=None)
        with _former(editor, known) as former:
            parts = ReleaseParts(
                new.stored.bundles, new.digests, new.stored.policy, new.stored.calibrations,
                pipelines or new.stored.pipelines, new.document.cloud, also or (),
                None if former is None else former.policy,
            )  # fmt: skip
            problems, warnings = misfits(parts)
            reports: Mapping[str, SimulationReport] = {}
            if log is not None and not problems:
                scene = with_fleet_shares(read_scene(log, None, uplink, rtt, START), fleet_share)
                reports = _simulated(former, new.stored, scene)
        if not problems:
            editor.add(new.document, new.files, in_days(time.time(), days))
    document = {"release": new.document.sequence, "problems": problems, "warnings": warnings}
    if as_json:
        simulated = {name: asdict(report) for name, report in reports.items()}
        more = {**({"simulated": simulated} if reports else {}), "drafts": _signed_so_far(editor)}
        typer.echo(json.dumps({**document, "ok": not problems, **more}))
    else:
        for text in [f"error: {one}" for one in problems] + [f"warning: {one}" for one in warnings]:
            print_error(text)
        if reports:
            stdout_console().print(_compared(reports))
        if not problems:
            _report_drafts(editor, f"drafted release {new.document.sequence}", {}, as_json=False)
    if problems:
        raise typer.Exit(EXIT_FAILED)


def sign(
    folder: FolderArgument,
    key: KeyOption,
    renew: Annotated[
        float | None, typer.Option("--renew", metavar="DAYS", help="Draft the current releases with a new expiry.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Sign the drafts of a root or a release with a key. Every signer does so in turn, and needs only `draft`.

    The passphrase of an encrypted key is read from the environment variable UPWELL_KEY_PASSPHRASE, or asked for.
    """
    with _needs():
        from upwell.tools.release.repository_editor import RepositoryEditor, in_days
    editor = RepositoryEditor(folder)
    opened_key = private_key(key, passphrase_of_key)
    if renew is not None:
        editor.renew(in_days(time.time(), renew))
    roles = editor.sign(opened_key)
    _report_drafts(editor, f"signed {' and '.join(roles)}", {"signed": list(roles)}, as_json)


def publish(
    folder: FolderArgument,
    key: KeyOption,
    days: Annotated[
        float, typer.Option(min=0.0, help="When the timestamp expires, from now; publish again before that.")
    ] = 7.0,
    to: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Also copy it there: a USB stick, a web root; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Publish what is signed, with a new timestamp by the online key. Without drafts only the timestamp is new.

    Files come first and the timestamp last, so a device sees either everything or the former state.
    """
    with _needs():
        from upwell.tools.release.repository_editor import RepositoryEditor, in_days, mirror
    editor = RepositoryEditor(folder)
    roles = editor.publish(private_key(key, passphrase_of_key), in_days(time.time(), days))
    for target in to or ():
        mirror(editor, target)
    if as_json:
        typer.echo(json.dumps({"published": list(roles), "copied_to": [str(one) for one in to or ()]}))
        return
    console = stdout_console()
    console.print(f"published {', '.join(roles)}", markup=False)
    for target in to or ():
        console.print(f"copied to {target}", markup=False)


def show(
    folder: FolderArgument,
    release: Annotated[int | None, typer.Option(metavar="N", help="Show one release in detail.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the releases in FOLDER, who signs, what expires when, and which drafts wait for which signatures."""
    with _needs():
        from upwell.tools.release.repository_editor import RepositoryEditor, sequences
    editor = RepositoryEditor(folder)
    root, targets, timestamp = editor.root(with_draft=True), editor.targets(with_draft=True), editor.timestamp()
    known = sequences(targets.signed) if targets is not None else []
    if release is not None:
        assert targets is not None or not known  # noqa: S101  as read above
        document = editor.document(release, targets.signed) if targets is not None else None
        if document is None:
            raise ConfigError.at(folder, "there is no release yet", "--release")
        if as_json:
            typer.echo(json.dumps(document.model_dump(mode="json")))
        else:
            stdout_console().print(_contents(document))
        return
    expires = {"root": root.signed.expires}
    expires |= {} if targets is None else {"targets": targets.signed.expires}
    expires |= {} if timestamp is None else {"timestamp": timestamp.signed.expires}
    roles: dict[str, Any] = {
        role: {"keys": [one[:16] for one in about.keyids], "threshold": about.threshold}
        for role, about in root.signed.roles.items()
    }
    drafts = _signed_so_far(editor)
    if as_json:
        found = {role: when.isoformat() for role, when in expires.items()}
        typer.echo(json.dumps({"releases": known, "roles": roles, "expires": found, "drafts": drafts}))
        return
    console = stdout_console()
    table = Table("role", "signed by", "expires", box=None, padding=(0, 3, 0, 0), pad_edge=False)
    for role, about in roles.items():
        when = expires.get("timestamp" if role == "snapshot" else role)
        table.add_row(
            role, f"{about['threshold']} of {', '.join(about['keys'])}", f"{when:%Y-%m-%d %H:%M}" if when else "–"
        )
    console.print(table)
    console.print(f"releases: {', '.join(map(str, known)) or 'none'}", markup=False)
    for role, state in drafts.items():
        console.print(_draft_line(role, state), markup=False)


def verify(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A folder, or https://…: where devices look.", show_default=False)
    ],
    root: Annotated[Path, typer.Option(metavar="ROOT.json", help="The root metadata that devices trust.")],
    release: Annotated[int | None, typer.Option(metavar="N", help="The release. Default: the newest.")] = None,
    key: Annotated[
        list[Path] | None, typer.Option(metavar="PUB.pem", help="A key that must have signed the bundles themselves.")
    ] = None,
    ca: Annotated[Path | None, typer.Option(metavar="FILE", help="Issuers of the server's certificate.")] = None,
    as_json: AsJson = False,
) -> None:
    """Download and check a release like a device that trusts ROOT. Exit code 1 if it is refused."""
    with _needs():
        from upwell.tools.release.release_check import checked
    check_repository(source)
    trust = Trust(tuple(key or ()), bool(key))
    with refused(as_json), tempfile.TemporaryDirectory() as temporary, progress() as bar:
        task = bar.add_task("fetching", total=None)
        tell: Callable[[str], None] = lambda text: bar.update(task, description=text)  # noqa: E731
        stored = checked(source, root, Path(temporary), release, trust, ca, tell)
        document, digest = stored.document, stored.digest
    if as_json:
        found = {"ok": True, "release": document.sequence, "name": document.name, "digest": digest}
        typer.echo(json.dumps({**found, "bundles": {name: one.version for name, one in document.bundles.items()}}))
        return
    stdout_console().print(f"release {document.sequence} of {document.name}, {digest}", markup=False)
    stdout_console().print(_contents(document))


def _needs() -> AbstractContextManager[None]:
    """For imports of what the extra brings."""
    return ExtraMissing.on_import("release", "releases need the package PACKAGE")


def _named_bundles(texts: Sequence[str]) -> dict[str, str]:
    """`[NAME=]BUNDLE` -> by name. Raises `ConfigError`."""
    from upwell.tools.release.release_maker import name_of

    found: dict[str, str] = {}
    for text in texts:
        name, equals, source = text.partition("=")
        if not equals or "/" in name or not source:
            name, source = name_of(text), text
        if name in found:
            raise ConfigError.at(None, f"two bundles are for model {name!r}", "--bundle")
        found[name] = source
    return found


@contextlib.contextmanager
def _former(editor: RepositoryEditor, known: Sequence[int]) -> Iterator[StoredRelease | None]:
    """The last published release, opened; None if there is none."""
    from upwell.tools.release.release_maker import opened

    targets = editor.targets()
    if targets is None or not known:
        yield None
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield opened(editor, editor.document(known[-1], targets.signed), {}, Path(temporary) / "unit")


def _simulated(former: StoredRelease | None, new: StoredRelease, scene: Scene) -> Mapping[str, SimulationReport]:
    """The requests of a log simulated under the former policy, if there is one, and under the new one."""
    releases = {**({"before": former} if former is not None else {}), "after": new}
    return {name: SimulationReport.of(routed(stored.policy_over(Policy()), scene)) for name, stored in releases.items()}


def _compared(reports: Mapping[str, SimulationReport]) -> Table:
    table = Table("simulated", *reports, box=None, padding=(0, 3, 0, 0), pad_edge=False)
    rows: Mapping[str, Callable[[SimulationReport], str]] = {
        "sent up": lambda one: f"{one.cloud_share:.2%}",
        "in time": lambda one: "–" if one.deadline_hit_rate is None else f"{one.deadline_hit_rate:.2%}",
        "99th percentile": lambda one: "–" if one.p99_s is None else f"{one.p99_s * 1e3:.0f} ms",
        "cost": lambda one: f"{one.cost:.4g}",
    }
    for title, cell in rows.items():
        table.add_row(title, *map(cell, reports.values()))
    return table


def _contents(document: ReleaseDocument) -> Table:
    table = Table("part", "what", "SHA-256", box=None, padding=(0, 3, 0, 0), pad_edge=False)
    for name, bundle in document.bundles.items():
        table.add_row("bundle", plain(f"{name}, version {bundle.version}"), bundle.sha256)
    for title in ("policy", "calibrations", "pipelines"):
        payload = getattr(document, title)
        if payload is not None:
            table.add_row(title, f"{payload.size_bytes} bytes", payload.sha256)
    for name, digest in document.cloud.items():
        table.add_row("cloud", plain(name), Text(digest.removeprefix("sha256:")))
    return table


def _signed_so_far(editor: RepositoryEditor) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for role, metadata in editor.drafts().items():
        state = editor.signatures(role, metadata)
        found[role] = {
            "version": metadata.signed.version,
            "signatures": len(state.signed),
            "threshold": state.threshold,
            "missing": [] if state.is_complete else [one[:16] for one in state.missing],
        }
    return found


def _draft_line(role: str, state: Mapping[str, Any]) -> str:
    said = f"draft of {role} {state['version']}: {state['signatures']} of {state['threshold']} signatures"
    return said + (
        f"; missing: one of {', '.join(state['missing'])}" if state["missing"] else "; ready to be published"
    )


def _report_drafts(editor: RepositoryEditor, done: str, more: Mapping[str, Any], as_json: bool) -> None:
    drafts = _signed_so_far(editor)
    if as_json:
        typer.echo(json.dumps({**more, "drafts": drafts}))
        return
    console = stdout_console()
    console.print(done, markup=False)
    for role, state in drafts.items():
        console.print(_draft_line(role, state), markup=False)

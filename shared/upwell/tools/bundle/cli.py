"""`upwell model pack`, `sign` and `verify`: make and check bundles, as folders or as files."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.progress import DownloadColumn
from rich.table import Table
from rich.text import Text

from upwell.edge.bundle.archive import write_archive
from upwell.edge.bundle.bundle import SIGNATURE_NAME, Bundle, BundleRefused, Trust
from upwell.edge.bundle.bundle_signature import private_key, sign_bundle
from upwell.edge.bundle.open_bundle import open_archive, open_bundle
from upwell.edge.updates.sources.base import FetchFailed
from upwell.shared.errors import EXIT_FAILED, ConfigError
from upwell.tools.bundle.bundle_packing import Packed, PackRequest, default_name, packed, put_in_place
from upwell.tools.bundle.runnable_variants import Disagreement, read_labelled
from upwell.tools.terminal import AsJson, plain, print_error, progress, stdout_console

PASSPHRASE_VARIABLE = "UPWELL_KEY_PASSPHRASE"  # noqa: S105  the name of a variable
SUFFIX = ".bundle.tar"

_OWN_WORD = (
    "they are this model's own answers: they detect a runtime that computes wrongly, not a wrong model; "
    "give correct answers with --labels or --reference"
)
_BundleArgument = Annotated[
    Path, typer.Argument(metavar="BUNDLE", help="A bundle: a folder, or a tar file of one.", show_default=False)
]


@contextlib.contextmanager
def _bytes_bar(total_bytes: int) -> Iterator[tuple[Callable[[str], None], Callable[[int], None]]]:
    """A progress bar: a function to call when a piece of work begins, and one to call with the bytes handled."""
    with progress(DownloadColumn()) as bar:
        task = bar.add_task("", total=total_bytes)
        yield lambda text: bar.update(task, description=text), lambda count: bar.advance(task, count)


def pack(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder with model files.", show_default=False)],
    version: Annotated[
        int, typer.Option(metavar="N", help="The version; greater than that of every earlier bundle of this name.")
    ],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The bundle's name. Default: FOLDER's.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"The file to write; default NAME-N{SUFFIX} here.")
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Make FOLDER itself the bundle; no file.")] = False,
    golden: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Requests to record golden vectors from, rows first.")
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The array of --golden with the correct class of each row."),
    ] = None,
    right: Annotated[
        str,
        typer.Option(metavar="SHARE", help="With --labels: the share of rows that must be correct on every device."),
    ] = "90%",
    reference: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Another model with its model.yaml, which gives the golden answers."),
    ] = None,
    calibrations: Annotated[
        Path | None, typer.Option(metavar="POLICY_YAML", help="A policy whose calibrations are included.")
    ] = None,
    package: Annotated[
        Literal["ai_edge_litert", "tflite_runtime"] | None,
        typer.Option(help="Check TFLite models only with this package."),
    ] = None,
    sign_with: Annotated[
        Path | None, typer.Option("--sign", metavar="KEY.pem", help="Sign the bundle with this key.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a bundle of FOLDER: load its models, record golden vectors, compare all runtimes, list every file."""
    if in_place and out is not None:
        raise ConfigError.at(None, "expected either --in-place or --out, not both", "--out")
    requests, truth = read_labelled(golden, labels, right)
    wanted = PackRequest(
        default_name(folder) if name is None else name, version, requests, calibrations, package, reference, truth
    )
    target = folder if in_place else _target(out, wanted, folder)
    key = None if sign_with is None else private_key(sign_with, passphrase_of_key)
    beside = folder.resolve() if in_place else target.resolve()
    with (
        refused(as_json),
        _bytes_bar(_bytes_at(folder)) as (step, advance),
        packed(folder, wanted, beside, step, advance) as made,
    ):
        if key is not None:
            sign_bundle(made.bundle, key)
        if in_place:
            put_in_place(made, folder)
        else:
            step(f"writing {target.name}")
            write_archive(target, made.bundle.folder)
    _report_pack(made, target, "" if key is None else key.fingerprint, as_json)


def _target(out: Path | None, wanted: PackRequest, folder: Path) -> Path:
    target = Path(f"{wanted.name}-{wanted.version}{SUFFIX}") if out is None else out
    if os.path.lexists(target):
        raise ConfigError.at(
            target, "already exists; give the new bundle a greater version, or another name with --out"
        )
    if target.resolve().is_relative_to(folder.resolve()):
        raise ConfigError.at(target, "is in the folder being packed; name a file outside it", "--out")
    return target


def sign(
    bundle: _BundleArgument,
    key: Annotated[Path, typer.Option(metavar="KEY.pem", help="The private key, Ed25519 in PEM.")],
    as_json: AsJson = False,
) -> None:
    """Sign BUNDLE: all of its files, its name and its version. An existing signature is replaced.

    The passphrase of an encrypted key is read from the environment variable UPWELL_KEY_PASSPHRASE, or asked for.
    """
    opened_key = private_key(key, passphrase_of_key)
    with refused(as_json), _checked(bundle, Trust(), None) as found:
        had_one = (found.folder / SIGNATURE_NAME).exists()
        sign_bundle(found, opened_key)
        if not bundle.is_dir():
            write_archive(bundle, found.folder)
    if as_json:
        document = {"bundle": str(bundle), "signed_by": opened_key.fingerprint, "replaced": had_one}
        typer.echo(json.dumps(document))
        return
    console = stdout_console()
    again = "; the former signature was replaced" if had_one else ""
    console.print(f"signed {bundle}{again}", markup=False)
    console.print(f"key {opened_key.fingerprint}", markup=False)


def verify(
    bundle: _BundleArgument,
    key: Annotated[
        list[Path] | None, typer.Option(metavar="PUB.pem", help="A trusted public key; may be repeated.")
    ] = None,
    require_signature: Annotated[bool, typer.Option("--require-signature", help="Refuse an unsigned bundle.")] = False,
    newer_than: Annotated[
        int | None, typer.Option(metavar="N", help="Refuse a bundle unless its version is greater.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check BUNDLE as a device would: its files, its signature, its version. Exit code 1 if it is refused."""
    trust = Trust(tuple(key or ()), require_signature)
    if trust.keys:
        from upwell.edge.bundle.signing_keys import load_public_key
    for path in trust.keys:  # even without a signature to check, an unreadable key is an error
        load_public_key(path)
    with refused(as_json), _checked(bundle, trust, newer_than) as found:
        is_signed = (found.folder / SIGNATURE_NAME).exists()
    if as_json:
        typer.echo(json.dumps({"ok": True, **_document(found), "is_signed": is_signed}))
        return
    stdout_console().print(_facts(found, _said_of_signature(found, is_signed)))


@contextlib.contextmanager
def _checked(path: Path, trust: Trust, newer_than: int | None) -> Iterator[Bundle]:
    """The bundle at `path`, checked. An archive is unpacked to a folder that is deleted after the block."""
    with tempfile.TemporaryDirectory() as scratch:
        with _bytes_bar(_bytes_at(path)) as (step, advance):
            step(f"reading {path.name}")
            if path.is_dir():
                bundle = open_bundle(path, trust, newer_than, advance)
            else:
                bundle = open_archive(path, Path(scratch) / "bundle", trust, newer_than, advance=advance)
        yield bundle


@contextlib.contextmanager
def refused(as_json: bool) -> Iterator[None]:
    """A bundle or release that is refused or unavailable, or models that disagree, are a failed check: print the
    reason, exit with code 1.
    """
    try:
        yield
    except BundleRefused as error:
        code, text = error.refusal.value, str(error)
    except Disagreement as error:
        code, text = "disagreement", str(error)
    except FetchFailed as error:
        code, text = "not_fetched", str(error)
    else:
        return
    if as_json:
        typer.echo(json.dumps({"ok": False, "refusal": code, "message": text}))
    else:
        print_error(f"refused ({code}): {text}")
    raise typer.Exit(EXIT_FAILED)


def passphrase_of_key() -> str:
    """The passphrase of an encrypted key: from the environment, or asked for without echo; never an argument."""
    given = os.environ.get(PASSPHRASE_VARIABLE)
    return given if given is not None else str(typer.prompt("Passphrase of the key", hide_input=True, err=True))


def _bytes_at(path: Path) -> int:
    """The bytes that opening the bundle will handle, if known; only for the progress bar."""
    with contextlib.suppress(OSError):
        return sum(one.stat().st_size for one in path.rglob("*")) if path.is_dir() else 2 * path.stat().st_size
    return 0


def _document(bundle: Bundle) -> dict[str, Any]:
    manifest = bundle.manifest
    return {
        "name": manifest.name if manifest else "",
        "version": bundle.version,
        "files": {path: {"sha256": one.sha256, "size_bytes": one.size_bytes} for path, one in manifest.files.items()}
        if manifest
        else {},
        "signed_by": bundle.signed_by,
    }


def _said_of_signature(bundle: Bundle, is_signed: bool) -> str:
    if bundle.signed_by:
        return f"by {bundle.signed_by}"
    return "present; not checked without --key" if is_signed else "none"


def _facts(bundle: Bundle, signature: str) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 3, 0, 0), pad_edge=False)
    manifest = bundle.manifest
    if manifest is None:
        table.add_row("manifest", "none: these files are unverified")
        return table
    total_bytes = sum(one.size_bytes for one in manifest.files.values())
    table.add_row("name", plain(manifest.name))
    table.add_row("version", str(manifest.version))
    table.add_row("files", f"{len(manifest.files)} of {total_bytes} bytes, all as the manifest says")
    table.add_row("signature", plain(signature))
    return table


def _report_pack(made: Packed, target: Path, signed_by: str, as_json: bool) -> None:
    if as_json:
        document = {
            "written": str(target),
            **_document(made.bundle),
            "signed_by": signed_by,
            "golden": made.golden,
            "golden_from_itself": made.is_own_word,
            "checks": [{"variant": one.variant, "found": one.verdict.text} for one in made.checks],
        }
        typer.echo(json.dumps(document))
        return
    console = stdout_console()
    table = Table("checked", "answers to the golden vectors", box=None, padding=(0, 3, 0, 0), pad_edge=False)
    for one in made.checks:
        table.add_row(Text(one.variant), plain(one.verdict.text))
    console.print(table)
    console.print(f"golden vectors: {made.golden}", markup=False)
    if made.is_own_word:
        console.print(_OWN_WORD, markup=False)
    signature = f"signed by {signed_by}" if signed_by else "not signed; see `upwell model sign`"
    console.print(f"wrote {target}, version {made.bundle.version}, {signature}", markup=False)

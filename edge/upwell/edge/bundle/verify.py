"""Opening a bundle: everything about it is checked before anybody uses any of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from upwell.edge.bundle.archive import DEFAULT_LIMITS, ArchiveLimits, unpacked
from upwell.edge.bundle.base import MANIFEST_NAME, SIGNATURE_NAME, Bundle, BundleRefused, Manifest, Refusal, Trust
from upwell.edge.bundle.description import check_confined
from upwell.edge.bundle.files import Progress, entry_of, nobody, sizes_in
from upwell.edge.bundle.manifest import read_manifest
from upwell.edge.bundle.signature import Signed, check_signature
from upwell.shared.errors import ConfigError
from upwell.shared.files import sync_folder

NO_TRUST = Trust()


def open_bundle(
    folder: Path, trust: Trust = NO_TRUST, newer_than: int | None = None, progress: Progress = nobody
) -> Bundle:
    """The bundle in `folder`, verified: its files are those of its manifest and those that a trusted key signed.

    `model.yaml` names no file outside it, and with `newer_than` its version is greater. A folder without a manifest is
    a bundle of version 0 that nothing is known of, unless a signature is required. Each file is read once. Raises
    `BundleRefused`, and `ConfigError` where a trusted key cannot be read.
    """
    if not folder.is_dir():
        raise BundleRefused(Refusal.MISSING, folder, "no such folder; expected a bundle")
    if not os.path.lexists(folder / MANIFEST_NAME):
        return _plain(folder, trust, newer_than)
    sizes = sizes_in(folder)
    manifest = read_manifest(folder)
    _check_sizes(folder, manifest, sizes)
    signed = check_signature(folder, trust)
    _check_version(folder, manifest.version, newer_than)
    digests = {path: entry_of(folder / path, progress).sha256 for path in sizes if path != SIGNATURE_NAME}
    for path, entry in manifest.files.items():
        if digests[path] != entry.sha256:
            raise BundleRefused(Refusal.TAMPERED, folder / path, f"differs from what {MANIFEST_NAME} says")
    if signed is not None:
        _check_signed(folder, signed, digests)
    check_confined(folder, sizes)
    return Bundle(folder, manifest, "" if signed is None else signed.by)


def open_archive(
    path: Path,
    into: Path,
    trust: Trust = NO_TRUST,
    newer_than: int | None = None,
    limits: ArchiveLimits = DEFAULT_LIMITS,
    progress: Progress = nobody,
) -> Bundle:
    """The bundle in the archive at `path`, verified as by `open_bundle` and then put at the folder `into`.

    `into` must not exist yet, and its parent must; it appears whole or not at all. `progress` hears of every byte
    twice, written and read. Raises `BundleRefused`, and `ConfigError` where it cannot be written.
    """
    with unpacked(path, into, limits, progress) as folder:
        bundle = _from_archive(path, folder, trust, newer_than, progress)
        try:
            os.chmod(folder, 0o755)  # noqa: S103  as any folder of files that are no secret
            if os.path.lexists(into):
                raise ConfigError.at(into, "is there already; a bundle is unpacked into a new folder")
            folder.rename(into)
            sync_folder(into.parent)
        except OSError as error:
            raise ConfigError.at(into, f"cannot be written: {error.strerror}") from None
    return Bundle(into, bundle.manifest, bundle.signed_by)


def _from_archive(path: Path, folder: Path, trust: Trust, newer_than: int | None, progress: Progress) -> Bundle:
    """The bundle that was unpacked into `folder`; a refusal names the archive, not a folder that is gone by then."""
    if not (folder / MANIFEST_NAME).is_file():
        raise BundleRefused(Refusal.MALFORMED, path, f"holds no {MANIFEST_NAME}; expected a bundle")
    try:
        return open_bundle(folder, trust, newer_than, progress)
    except BundleRefused as error:
        problem = error.problems[0]
        inside = "" if problem.path in (None, folder) else f"{problem.path.relative_to(folder)}: "
        raise BundleRefused(error.refusal, path, inside + problem.message) from None


def _plain(folder: Path, trust: Trust, newer_than: int | None) -> Bundle:
    why = f"it has no {MANIFEST_NAME}"
    if os.path.lexists(folder / SIGNATURE_NAME):
        raise BundleRefused(Refusal.MALFORMED, folder, f"{why}, and {SIGNATURE_NAME} signs nothing without it")
    if trust.require:
        raise BundleRefused(Refusal.UNSIGNED, folder, f"a signature is required and {why}; see `upwell model pack`")
    if newer_than is not None:
        raise BundleRefused(Refusal.OLDER, folder, f"{why} and so no version, and version {newer_than} is installed")
    return Bundle(folder)


def _check_sizes(folder: Path, manifest: Manifest, sizes: Mapping[str, int]) -> None:
    """The files are those of the manifest, and as long as it says."""
    listed = {MANIFEST_NAME, SIGNATURE_NAME, *manifest.files}
    for path in sizes:
        if path not in listed:
            raise BundleRefused(Refusal.TAMPERED, folder / path, f"is not listed in {MANIFEST_NAME}")
    for path, entry in manifest.files.items():
        if path not in sizes:
            raise BundleRefused(Refusal.TAMPERED, folder / path, f"is listed in {MANIFEST_NAME} and missing")
        if sizes[path] != entry.size_bytes:
            refusal = Refusal.TRUNCATED if sizes[path] < entry.size_bytes else Refusal.TAMPERED
            message = f"has {sizes[path]} bytes and not the {entry.size_bytes} of {MANIFEST_NAME}"
            raise BundleRefused(refusal, folder / path, message)


def _check_version(folder: Path, version: int, newer_than: int | None) -> None:
    if newer_than is not None and version <= newer_than:
        what = "is installed" if version == newer_than else f"is older than the installed version {newer_than}"
        raise BundleRefused(Refusal.OLDER, folder, f"version {version} {what}; a new bundle needs a greater one")


def _check_signed(folder: Path, signed: Signed, digests: Mapping[str, str]) -> None:
    """The signature is of these files, all of them and no others."""
    differing = sorted(path for path in {*signed.digests, *digests} if signed.digests.get(path) != digests.get(path))
    if differing:
        message = f"the signature is of other files: {differing[0]!r} differs; sign the bundle again"
        raise BundleRefused(Refusal.WRONG_SIGNATURE, folder / SIGNATURE_NAME, message)

"""Opening a bundle: everything is checked before any of it is used."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from upwell.edge.bundle.bundle import (
    DESCRIPTION_NAME,
    MANIFEST_NAME,
    SIGNATURE_NAME,
    Advance,
    Bundle,
    BundleRefused,
    Manifest,
    Refusal,
    Trust,
    entry_of,
    nobody,
    sizes_in,
)
from upwell.shared.config.yaml import read_text
from upwell.shared.config.yaml_tree import read_tree
from upwell.shared.errors import ConfigError
from upwell.shared.files import Unconfined, confined, sync_folder

if TYPE_CHECKING:
    from upwell.edge.bundle.bundle_signature import Signed

NO_TRUST = Trust()
_MODEL_SUFFIXES = (".onnx", ".tflite")


def open_bundle(
    folder: Path, trust: Trust = NO_TRUST, newer_than: int | None = None, advance: Advance = nobody
) -> Bundle:
    """Open the bundle in `folder` and verify that its files match its manifest and a trusted signature.

    `model.yaml` may name no file outside it, and with `newer_than` its version must be greater. Unless a signature is
    required, a folder without a manifest is an unverified bundle of version 0. Each file is read once. Raises
    `BundleRefused`, and `ConfigError` if a trusted key cannot be read.
    """
    if not folder.is_dir():
        raise BundleRefused(Refusal.MISSING, folder, "no such folder; expected a bundle")
    if not os.path.lexists(folder / MANIFEST_NAME):
        return _plain(folder, trust, newer_than)
    from upwell.edge.bundle.bundle_signature import check_signature  # a plain folder needs neither
    from upwell.edge.bundle.manifest import read_manifest

    sizes = sizes_in(folder)
    manifest = read_manifest(folder)
    _check_sizes(folder, manifest, sizes)
    signed = check_signature(folder, trust)
    _check_version(folder, manifest.version, newer_than)
    digests = {path: entry_of(folder / path, advance).sha256 for path in sizes if path != SIGNATURE_NAME}
    for path, entry in manifest.files.items():
        if digests[path] != entry.sha256:
            raise BundleRefused(Refusal.TAMPERED, folder / path, f"does not match {MANIFEST_NAME}")
    if signed is not None:
        _check_signed(folder, signed, digests)
    check_confined(folder, sizes)
    return Bundle(folder, manifest, "" if signed is None else signed.by)


def open_archive(
    path: Path,
    into: Path,
    trust: Trust = NO_TRUST,
    newer_than: int | None = None,
    advance: Advance = nobody,
) -> Bundle:
    """Verify the archive at `path` as `open_bundle` does, then install it as the folder `into`.

    `into` must not exist, but its parent must; it appears atomically. `advance` counts every byte twice, as written
    and as read. Raises `BundleRefused`, and `ConfigError` if it cannot be written.
    """
    from upwell.edge.bundle.archive import unpacked

    if path.suffix.lower() in (".onnx", ".tflite"):
        raise BundleRefused(
            Refusal.MALFORMED, path, "this is a model file; expected its folder, or the model file under `file`"
        )
    with unpacked(path, into, advance) as folder:
        bundle = _from_archive(path, folder, trust, newer_than, advance)
        with ConfigError.on_os_error(into, "cannot be written"):
            os.chmod(folder, 0o755)  # noqa: S103  as any folder of files that are no secret
            if os.path.lexists(into):
                raise ConfigError.at(into, "already exists; a bundle is unpacked into a new folder")
            folder.rename(into)
            sync_folder(into.parent)
    return Bundle(into, bundle.manifest, bundle.signed_by)


def _from_archive(path: Path, folder: Path, trust: Trust, newer_than: int | None, advance: Advance) -> Bundle:
    """The bundle unpacked into `folder`; a refusal names the archive, since the folder is deleted by then."""
    if not (folder / MANIFEST_NAME).is_file():
        raise BundleRefused(Refusal.MALFORMED, path, f"contains no {MANIFEST_NAME}; expected a bundle")
    try:
        return open_bundle(folder, trust, newer_than, advance)
    except BundleRefused as error:
        problem = error.problems[0]
        inside = "" if problem.path in (None, folder) else f"{problem.path.relative_to(folder)}: "
        raise BundleRefused(error.refusal, path, inside + problem.message) from None


def _plain(folder: Path, trust: Trust, newer_than: int | None) -> Bundle:
    why = f"it has no {MANIFEST_NAME}"
    if os.path.lexists(folder / SIGNATURE_NAME):
        raise BundleRefused(Refusal.MALFORMED, folder, f"{why}, so {SIGNATURE_NAME} signs nothing")
    if trust.require:
        raise BundleRefused(Refusal.UNSIGNED, folder, f"a signature is required, but {why}; see `upwell model pack`")
    if newer_than is not None:
        raise BundleRefused(
            Refusal.OLDER, folder, f"{why} and therefore no version, while version {newer_than} is installed"
        )
    return Bundle(folder)


def _check_sizes(folder: Path, manifest: Manifest, sizes: Mapping[str, int]) -> None:
    """Check that the files and their sizes match the manifest."""
    listed = {MANIFEST_NAME, SIGNATURE_NAME, *manifest.files}
    for path in sizes:
        if path not in listed:
            raise BundleRefused(Refusal.TAMPERED, folder / path, f"is not listed in {MANIFEST_NAME}")
    for path, entry in manifest.files.items():
        if path not in sizes:
            raise BundleRefused(Refusal.TAMPERED, folder / path, f"is missing, though {MANIFEST_NAME} lists it")
        if sizes[path] != entry.size_bytes:
            refusal = Refusal.TRUNCATED if sizes[path] < entry.size_bytes else Refusal.TAMPERED
            message = f"has {sizes[path]} bytes, not the {entry.size_bytes} that {MANIFEST_NAME} lists"
            raise BundleRefused(refusal, folder / path, message)


def _check_version(folder: Path, version: int, newer_than: int | None) -> None:
    if newer_than is not None and version <= newer_than:
        what = "is installed" if version == newer_than else f"is older than the installed version {newer_than}"
        raise BundleRefused(Refusal.OLDER, folder, f"version {version} {what}; a new bundle needs a greater one")


def _check_signed(folder: Path, signed: Signed, digests: Mapping[str, str]) -> None:
    """Check that the signature covers exactly these files."""
    differing = sorted(path for path in {*signed.digests, *digests} if signed.digests.get(path) != digests.get(path))
    if differing:
        message = f"the signature covers other files: {differing[0]!r} differs; sign the bundle again"
        raise BundleRefused(Refusal.WRONG_SIGNATURE, folder / SIGNATURE_NAME, message)


def check_confined(folder: Path, files: Collection[str]) -> None:
    """Refuse a bundle whose description names a file outside it, which would expose that file to callers.

    `files` are those of the bundle. Raises `BundleRefused`: `UNCONFINED`, and `MALFORMED` for invalid YAML.
    """
    for file in sorted(files):
        path = PurePosixPath(file)
        models = {str(path.with_suffix(suffix)) for suffix in _MODEL_SUFFIXES}
        if path.name == DESCRIPTION_NAME or (path.suffix == ".yaml" and models.intersection(files)):
            _check(folder, folder / path)


def _check(folder: Path, path: Path) -> None:
    try:
        document = read_tree(read_text(path, folder), None).value
    except ConfigError as error:
        raise BundleRefused(Refusal.MALFORMED, path, str(error)) from None
    golden = document.get("golden") if isinstance(document, dict) else None
    vectors = golden.get("file") if isinstance(golden, dict) else None
    for name in [*_named_files(document, is_step=False), *([vectors] if isinstance(vectors, str) else [])]:
        if not _is_inside(folder, path.parent, name):
            raise BundleRefused(Refusal.UNCONFINED, path, f"names the file {name!r}, which is not in the bundle")


def _is_inside(folder: Path, base: Path, name: str) -> bool:
    """Whether `name`, as written in a file in `base`, is a file of the bundle, wherever the bundle is."""
    if os.path.isabs(name) or name.startswith("~") or "\\" in name:
        return False
    try:
        confined(folder, os.path.normpath(base / name))
    except Unconfined:
        return False
    return True


def _named_files(value: Any, is_step: bool) -> Iterator[str]:
    """Every string that names a file: under `labels`, except in a step, `{labels: scores}`, where it is a value; under
    `tokenizer`, and in the step `{tokenize: tokenizer.json}`."""
    if isinstance(value, list):
        for item in value:
            yield from _named_files(item, is_step=True)
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, str) and key in (("tokenize",) if is_step else ("labels", "tokenizer")):
                yield from () if key != "labels" and item.lstrip().startswith("{") else (item,)
            yield from _named_files(item, is_step=False)

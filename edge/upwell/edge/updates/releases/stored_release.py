"""A release as a folder on a device: a bundle of bundles, verified and stored as one.

release.json          the signed document
manifest.json         name, sequence, and the SHA-256 of every file here
b0/, b1/, …           the bundles, unpacked, by the order of their names
policy.yaml, calibrations.yaml, pipelines.yaml
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from upwell.edge.bundle.bundle import (
    CALIBRATIONS_NAME,
    MANIFEST_NAME,
    Bundle,
    BundleRefused,
    Refusal,
    Trust,
    entry_of,
    read_small,
    sizes_in,
)
from upwell.edge.bundle.bundle_calibrations import load_calibrations
from upwell.edge.bundle.manifest import manifest_bytes, new_manifest, read_manifest
from upwell.edge.bundle.open_bundle import open_archive, open_bundle
from upwell.edge.updates.releases.release_document import MAX_DOCUMENT_BYTES, Payload, ReleaseDocument, parse_document
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.files import open_plain, write_whole
from upwell.shared.routing.policy.calibrations import Calibration
from upwell.shared.routing.policy.policy import Policy

DOCUMENT_NAME = "release.json"
POLICY_NAME = "policy.yaml"
PIPELINES_NAME = "pipelines.yaml"


@dataclass(frozen=True)
class StoredRelease:
    """A release on disk, with every part read. `policy` and `pipelines` are None if it has none."""

    folder: Path
    document: ReleaseDocument
    bundles: Mapping[str, Bundle]
    policy: Policy | None = None
    calibrations: tuple[Calibration, ...] = ()
    pipelines: Path | None = None
    digest: str = ""
    """`sha256:…` of the document, which covers all that it names."""

    @property
    def sequence(self) -> int:
        """Its place in the order of releases."""
        return self.document.sequence

    def policy_over(self, local: Policy) -> Policy:
        """The policy for a device with the policy `local`: the release's policy and calibrations."""
        policy = self.policy or local
        if not self.calibrations:
            return policy
        return policy.model_copy(update={"calibrations": [*policy.calibrations, *self.calibrations]})


def read_document(folder: Path) -> bytes:
    """The document of the release in `folder`. Raises `BundleRefused`."""
    return read_small(folder / DOCUMENT_NAME, MAX_DOCUMENT_BYTES, Refusal.MALFORMED)


def bundle_folder(folder: Path, document: ReleaseDocument, model: str) -> Path:
    """The folder of a model's bundle within the folder of a release."""
    return folder / f"b{sorted(document.bundles).index(model)}"


def store_release(
    data: bytes, document: ReleaseDocument, into: Path, payload: Callable[[Payload], Path], former: Path | None = None
) -> None:
    """Assemble a release's document and files in the folder `into`, which must not exist.

    `payload` gives a file, which is verified when it is stored. Equal bundles are copied from the release in the folder
    `former`. Raises `BundleRefused`, `ConfigError` and `OSError`; the folder may then be incomplete.
    """
    into.mkdir(mode=0o700, parents=True)
    write_whole(into / DOCUMENT_NAME, data)
    for name, bundle in document.bundles.items():
        target = bundle_folder(into, document, name)
        kept = None if former is None else _same_bundle(former, name, bundle.sha256)
        if kept is not None:
            shutil.copytree(kept, target, symlinks=True)
        else:
            found = open_archive(_checked(payload(bundle), bundle), target)
            if found.version != bundle.version:
                problem = f"the bundle of {name!r} has version {found.version}; the release names {bundle.version}"
                raise BundleRefused(Refusal.TAMPERED, None, problem)
    for part, file_name in (
        (document.policy, POLICY_NAME),
        (document.calibrations, CALIBRATIONS_NAME),
        (document.pipelines, PIPELINES_NAME),
    ):
        if part is not None:
            shutil.copyfile(_checked(payload(part), part), into / file_name)
    manifest = new_manifest(document.name, document.sequence, {path: entry_of(into / path) for path in sizes_in(into)})
    write_whole(into / MANIFEST_NAME, manifest_bytes(manifest))


def open_release(folder: Path, trust: Trust) -> StoredRelease:
    """Open the release in `folder`, whose files `open_bundle` has verified; each bundle is verified with `trust`.

    Raises `BundleRefused` for a part that cannot be used.
    """
    data = read_document(folder)
    document = parse_document(data, _sequence_in(folder))
    try:
        bundles = {name: open_bundle(bundle_folder(folder, document, name), trust) for name in document.bundles}
        policy = None if document.policy is None else load_yaml(folder / POLICY_NAME, Policy, folder)
        calibrations = load_calibrations(folder) if document.calibrations is not None else ()
    except BundleRefused:
        raise
    except ConfigError as error:
        raise BundleRefused(Refusal.MALFORMED, folder, str(error)) from None
    pipelines = None if document.pipelines is None else folder / PIPELINES_NAME
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return StoredRelease(folder, document, bundles, policy, calibrations, pipelines, digest)


def _sequence_in(folder: Path) -> int:
    return read_manifest(folder).version


def _same_bundle(former: Path, name: str, sha256: str) -> Path | None:
    """The folder of this archive's bundle in another release; None if it has another one or is damaged."""
    try:
        open_bundle(former)
        document = parse_document(read_document(former), _sequence_in(former))
    except BundleRefused:
        return None
    kept = document.bundles.get(name)
    return bundle_folder(former, document, name) if kept is not None and kept.sha256 == sha256 else None


def _checked(path: Path, payload: Payload) -> Path:
    """The file, checked against the release. Raises `BundleRefused`."""
    digest, size_bytes = hashlib.sha256(), 0
    with open_plain(path) as file:
        while data := file.read(1 << 20):
            digest.update(data)
            size_bytes += len(data)
    if (digest.hexdigest(), size_bytes) != (payload.sha256, payload.size_bytes):
        problem = (
            f"it is not the file of {payload.size_bytes} bytes and SHA-256 {payload.sha256} that the release names"
        )
        raise BundleRefused(Refusal.DIGEST_MISMATCH, path, problem)
    return path

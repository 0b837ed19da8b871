"""Small bundles for the tests of updates: real archives with real signatures, and ways to spoil them."""

from __future__ import annotations

import random
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from upwell.edge.bundle.archive import write_archive
from upwell.edge.bundle.bundle import MANIFEST_NAME, Bundle, Trust, entry_of, sizes_in
from upwell.edge.bundle.bundle_signature import sign_bundle
from upwell.edge.bundle.manifest import manifest_bytes, new_manifest
from upwell.edge.bundle.signing_keys import PrivateKey, fingerprint_of


class Signer:
    """A key that signs; `public` is the PEM file to trust."""

    def __init__(self, folder: Path, name: str = "signer") -> None:
        key = Ed25519PrivateKey.generate()
        self.key = PrivateKey(fingerprint_of(key.public_key()), key)
        self.pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self.public = folder / f"{name}.pub"
        self.public.write_bytes(
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )

    @property
    def trust(self) -> Trust:
        """Only what it signed."""
        return Trust((self.public,), require=True)


def bundle_folder(
    at: Path, version: int, *, name: str = "digits", size: int = 2000, signer: Signer | None = None
) -> Path:
    """A bundle as a folder. Its model is noise, of `size` bytes, and differs from version to version."""
    at.mkdir(parents=True)
    (at / "model.onnx").write_bytes(random.Random(version).randbytes(size))
    (at / "labels.txt").write_text("zero\none\n")
    manifest = new_manifest(name, version, {path: entry_of(at / path) for path in sizes_in(at)})
    (at / MANIFEST_NAME).write_bytes(manifest_bytes(manifest))
    if signer is not None:
        sign_bundle(Bundle(at, manifest), signer.key)
    return at


def archive_of(folder: Path, at: Path) -> Path:
    """The files of a folder as an archive, whatever they are."""
    write_archive(at, folder)
    return at


def bundle_archive(
    at: Path, version: int, *, name: str = "digits", size: int = 2000, signer: Signer | None = None
) -> Path:
    """A bundle as one file, at `at`; its folder is left beside it, hidden."""
    folder = at.parent / f".{at.name}-{version}-{name}-{size}"
    if not folder.exists():
        bundle_folder(folder, version, name=name, size=size, signer=signer)
    return archive_of(folder, at)

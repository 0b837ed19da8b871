"""Bundles, archives and keys for tests."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from upwell.edge.bundle.bundle import MANIFEST_NAME, SIGNATURE_NAME, Bundle, entry_of, sizes_in
from upwell.edge.bundle.bundle_signature import private_key, sign_bundle
from upwell.edge.bundle.manifest import manifest_bytes, new_manifest

FILES: Mapping[str, bytes] = {
    "model.onnx": bytes(range(256)) * 20,
    "labels.txt": b"a\nb\n",
    "more/notes.txt": b"",
}
Key = Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    """These files in a folder."""
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def make(folder: Path, files: Mapping[str, bytes] = FILES, *, name: str = "digits", version: int = 3) -> Bundle:
    """A bundle of these files in `folder`, unsigned."""
    write(folder, files)
    listed = {path: entry_of(folder / path) for path in sizes_in(folder) if path not in (MANIFEST_NAME, SIGNATURE_NAME)}
    manifest = new_manifest(name, version, listed)
    (folder / MANIFEST_NAME).write_bytes(manifest_bytes(manifest))
    return Bundle(folder, manifest)


def signed(folder: Path, key: Path, *, version: int = 3) -> Bundle:
    """A bundle in `folder`, signed with the private key at `key`."""
    bundle = make(folder, version=version)
    sign_bundle(bundle, private_key(key, passphrase))
    return bundle


def passphrase() -> str:
    """Of the keys that `keys` encrypts."""
    return "correct horse"


def keys(folder: Path, name: str, key: Key | None = None, *, encrypted: bool = False) -> tuple[Path, Path]:
    """A private key and its public half as PEM files, `NAME.pem` and `NAME.pub.pem`."""
    key = key or Ed25519PrivateKey.generate()
    protection: serialization.KeySerializationEncryption = (
        serialization.BestAvailableEncryption(passphrase().encode()) if encrypted else serialization.NoEncryption()
    )
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
    private.write_bytes(key.private_bytes(pem, pkcs8, protection))
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return private, public


def header(path: str, size_bytes: int = 0, kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    """One header of a tar file, whatever it says."""
    info = tarfile.TarInfo(path)
    info.size, info.type, info.linkname = size_bytes, kind, link
    return info.tobuf(tarfile.USTAR_FORMAT, "utf-8")


def entry(path: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    """A header and what follows it, filled up to whole blocks."""
    return header(path, len(data), kind, link) + data + bytes(-len(data) % 512)


END = bytes(1024)


def plain_tar(files: Mapping[str, bytes]) -> bytes:
    """These files as Python's tarfile writes them."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, data in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()

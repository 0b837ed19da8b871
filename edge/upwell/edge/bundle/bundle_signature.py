"""Signing the files of a bundle, and checking who signed them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from upwell.edge.bundle.bundle import MANIFEST_NAME, SIGNATURE_NAME, Bundle, BundleRefused, Refusal, Trust
from upwell.edge.bundle.folder_files import entry_of, read_small
from upwell.edge.bundle.signature_envelope import (
    Envelope,
    digests_of,
    read_envelope,
    signed_bytes,
    statement,
    write_envelope,
)
from upwell.shared.errors import ConfigError
from upwell.shared.files import write_named

if TYPE_CHECKING:
    from upwell.edge.bundle.signing_keys import PrivateKey, PublicKey

MAX_SIGNATURE_BYTES = 4 << 20


@dataclass(frozen=True)
class Signed:
    """The files that a trusted key signed: path -> SHA-256 in hex. `by` is the key's fingerprint."""

    digests: Mapping[str, str]
    by: str


def sign_bundle(bundle: Bundle, key: PrivateKey) -> None:
    """Write `model.sig` into the folder of a bundle whose files were checked, replacing an existing one.

    Raises `ConfigError` if there is no manifest or the file cannot be written.
    """
    if bundle.manifest is None:
        raise ConfigError.at(bundle.folder, f"there is no {MANIFEST_NAME} to sign; run `upwell model pack` first")
    manifest = bundle.folder / MANIFEST_NAME
    digests = {path: entry.sha256 for path, entry in bundle.manifest.files.items()}
    digests[MANIFEST_NAME] = entry_of(manifest).sha256
    payload = statement(bundle.manifest.name, digests)
    envelope = Envelope(payload, key.sign(signed_bytes(payload)), key.fingerprint)
    write_named(bundle.folder / SIGNATURE_NAME, write_envelope(envelope), like=manifest)


def check_signature(folder: Path, trust: Trust) -> Signed | None:
    """The files that the bundle in `folder` is signed for; None if no signature is required and none is checked.

    The files themselves are not read. Raises `BundleRefused` (`UNSIGNED`, `WRONG_SIGNATURE`), and `ConfigError` if a
    key cannot be read.
    """
    path = folder / SIGNATURE_NAME
    if not path.exists():
        if trust.require:
            raise BundleRefused(
                Refusal.UNSIGNED,
                folder,
                f"a signature is required, but there is no {SIGNATURE_NAME}; see `upwell model sign`",
            )
        return None
    if not trust.keys:
        if trust.require:
            raise ConfigError.at(None, "a signature is required, but no key is trusted; name a public key")
        return None
    keys = [public_key(key) for key in trust.keys]
    try:
        envelope = read_envelope(read_small(path, MAX_SIGNATURE_BYTES, Refusal.WRONG_SIGNATURE))
        signer = _signer(path, envelope, keys)
        return Signed(digests_of(envelope.payload), signer.fingerprint)
    except ValueError as error:
        raise BundleRefused(Refusal.WRONG_SIGNATURE, path, f"the signature cannot be read: {error}") from None


def _signer(path: Path, envelope: Envelope, keys: list[PublicKey]) -> PublicKey:
    hinted = [key for key in keys if envelope.hint in ("", key.fingerprint)]
    for key in hinted:
        if key.fits(envelope.signature, envelope.signed_bytes):
            return key
    trusted = ", ".join(key.fingerprint[:16] for key in keys)
    if hinted:
        why = "the signature was not made with that key, or the signed content was changed"
    else:
        why = f"it was signed with key {envelope.hint[:16]!r}, which is not trusted"
    raise BundleRefused(Refusal.WRONG_SIGNATURE, path, f"{why}; trusted: {trusted}")


def public_key(path: Path) -> PublicKey:
    """The public key in a PEM file. Raises `ConfigError`, also if the extra `bundle` is missing."""
    try:
        from upwell.edge.bundle.signing_keys import load_public_key
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    return load_public_key(path)


def private_key(path: Path, passphrase: Callable[[], str]) -> PrivateKey:
    """The private key in a PEM file; `passphrase` is called if it is encrypted. Raises `ConfigError` likewise."""
    try:
        from upwell.edge.bundle.signing_keys import load_private_key
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    return load_private_key(path, passphrase)


def _missing(error: ModuleNotFoundError) -> Exception:
    if (error.name or "").partition(".")[0] != "cryptography":
        return error
    return ConfigError.at(None, "signatures need the package cryptography: pip install 'upwell[bundle]'")

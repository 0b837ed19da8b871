"""Signing keys and trusted keys: PEM files of Ed25519 keys, or of keys on a NIST curve.

Prefer Ed25519. Keys on P-256, P-384 and P-521 are accepted because the package `model-signing` supports no others.
Needs the extra `bundle`; import it only once there is a key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from upwell.shared.errors import ConfigError
from upwell.shared.files import read_file

_MAX_KEY_BYTES = 1 << 16
_CURVES: dict[str, type[hashes.HashAlgorithm]] = {
    "secp256r1": hashes.SHA256,
    "secp384r1": hashes.SHA384,
    "secp521r1": hashes.SHA512,
}
_EXPECTED = "expected an Ed25519 key (`openssl genpkey -algorithm ed25519`), or one on P-256, P-384 or P-521"


@dataclass(frozen=True)
class PublicKey:
    """A key for checking signatures. `fingerprint` is `fingerprint_of` the key."""

    fingerprint: str
    key: Ed25519PublicKey | ec.EllipticCurvePublicKey

    def fits(self, signature: bytes, data: bytes) -> bool:
        """Whether `signature` was made of `data` with this key's private half."""
        try:
            if isinstance(self.key, Ed25519PublicKey):
                self.key.verify(signature, data)
            else:
                self.key.verify(signature, data, _ecdsa(self.key.curve))
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class PrivateKey:
    """A key that signs. `fingerprint` is that of its public half."""

    fingerprint: str
    key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey

    def sign(self, data: bytes) -> bytes:
        """The signature of `data`."""
        if isinstance(self.key, Ed25519PrivateKey):
            return self.key.sign(data)
        return self.key.sign(data, _ecdsa(self.key.curve))


def load_public_key(path: Path) -> PublicKey:
    """The public key in a PEM file. Raises `ConfigError`."""
    data = read_file(path, "the key", _MAX_KEY_BYTES)
    if b"PRIVATE KEY" in data:
        raise ConfigError.at(path, "this is a private key, which stays where bundles are signed; expected a public key")
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError.at(path, f"this is not a public key in PEM; {_EXPECTED}") from None
    if isinstance(key, Ed25519PublicKey) or (isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _CURVES):
        return PublicKey(fingerprint_of(key), key)
    raise ConfigError.at(path, f"a key of another kind; {_EXPECTED}")


def load_private_key(path: Path, passphrase: Callable[[], str]) -> PrivateKey:
    """The private key in a PEM file; `passphrase` is called only if the key is encrypted. Raises `ConfigError`."""
    data = read_file(path, "the key", _MAX_KEY_BYTES)
    if b"PUBLIC KEY" in data:
        raise ConfigError.at(path, "this is a public key; expected the private key that signs")
    password = passphrase().encode() if b"ENCRYPTED" in data else None
    try:
        key = serialization.load_pem_private_key(data, password)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        problem = f"this is not a private key in PEM; {_EXPECTED}" if password is None else "the passphrase is wrong"
        raise ConfigError.at(path, problem) from None
    if isinstance(key, Ed25519PrivateKey) or (
        isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name in _CURVES
    ):
        return PrivateKey(fingerprint_of(key.public_key()), key)
    raise ConfigError.at(path, f"a key of another kind; {_EXPECTED}")


def fingerprint_of(key: Ed25519PublicKey | ec.EllipticCurvePublicKey) -> str:
    """SHA-256 in hex of the public key in PEM, equal to `sha256sum` of the file that openssl writes.

    `model-signing` identifies keys the same way.
    """
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(pem).hexdigest()


def _ecdsa(curve: ec.EllipticCurve) -> ec.ECDSA:
    return ec.ECDSA(_CURVES[curve.name]())

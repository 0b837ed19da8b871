"""Signing the files of a bundle, and checking who signed them, by OpenSSF model signing 1.0.

`model.sig` is a Sigstore bundle (JSON) whose DSSE envelope carries an in-toto statement. The statement's predicate
(`https://model_signing/signature/v1.0`) lists every file with its SHA-256; its subject is the SHA-256 of all these
digests in the order of the list. What is signed is DSSE's pre-authentication encoding of the statement's bytes.
Sources: https://github.com/sigstore/model-transparency, https://github.com/secure-systems-lab/dsse/blob/v1.0.0.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from upwell.edge.bundle.bundle import (
    MANIFEST_NAME,
    SIGNATURE_NAME,
    Bundle,
    BundleRefused,
    Refusal,
    Trust,
    entry_of,
    read_small,
)
from upwell.shared.errors import ConfigError, ExtraMissing
from upwell.shared.files import write_named

if TYPE_CHECKING:
    from upwell.edge.bundle.signing_keys import PrivateKey, PublicKey


_NEEDS = "signatures need the package PACKAGE"
_MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_PREDICATE_TYPE = "https://model_signing/signature/v1.0"


def _base64(value: object) -> bytes:
    if not isinstance(value, str):
        raise ValueError("expected text in base64")
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        raise ValueError("expected text in base64") from None


_Bytes = Annotated[bytes, BeforeValidator(_base64)]
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Part(BaseModel):
    """A part of the document; fields added by other writers are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, defer_build=True)


class _PublicKey(_Part):
    hint: str = ""


class _Signature(_Part):
    sig: _Bytes


class _Document(_Part):
    media_type: Literal["application/vnd.dev.sigstore.bundle.v0.3+json"] = Field(alias="mediaType")
    public_key: _PublicKey = Field(validation_alias=AliasPath("verificationMaterial", "publicKey"))
    payload: _Bytes = Field(validation_alias=AliasPath("dsseEnvelope", "payload"))
    payload_type: Literal["application/vnd.in-toto+json"] = Field(
        validation_alias=AliasPath("dsseEnvelope", "payloadType")
    )
    signatures: list[_Signature] = Field(
        validation_alias=AliasPath("dsseEnvelope", "signatures"), min_length=1, max_length=1
    )


class _Subject(_Part):
    digest: _Digest = Field(validation_alias=AliasPath("digest", "sha256"))


class _Resource(_Part):
    name: str
    algorithm: Literal["sha256"]
    digest: _Digest


class _Statement(_Part):
    type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: list[_Subject] = Field(min_length=1, max_length=1)
    predicate_type: Literal["https://model_signing/signature/v1.0"] = Field(alias="predicateType")
    method: Literal["files"] = Field(validation_alias=AliasPath("predicate", "serialization", "method"))
    hash_type: Literal["sha256"] = Field(validation_alias=AliasPath("predicate", "serialization", "hash_type"))
    resources: list[_Resource] = Field(validation_alias=AliasPath("predicate", "resources"))


@dataclass(frozen=True)
class Envelope:
    """The content of a signature file: the statement's bytes, their signature, and a key hint (may be empty)."""

    payload: bytes
    signature: bytes
    hint: str

    @property
    def signed_bytes(self) -> bytes:
        """The bytes that are signed."""
        return signed_bytes(self.payload)


def signed_bytes(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding of a statement."""
    return b" ".join([b"DSSEv1", b"%d" % len(_PAYLOAD_TYPE), _PAYLOAD_TYPE.encode(), b"%d" % len(payload), payload])


def statement(name: str, digests: Mapping[str, str]) -> bytes:
    """The in-toto statement that a model called `name` consists of exactly these files: path -> SHA-256 in hex."""
    ordered = sorted(digests.items(), key=lambda item: PurePosixPath(item[0]))
    document = {
        "_type": _STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": _root_digest(digest for _, digest in ordered)}}],
        "predicateType": _PREDICATE_TYPE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": ["model.sig"],
            },
            "resources": [{"name": path, "algorithm": "sha256", "digest": digest} for path, digest in ordered],
        },
    }
    return json.dumps(document, indent=2).encode("ascii")


def write_envelope(envelope: Envelope) -> bytes:
    """The text of a signature file."""
    document = {
        "mediaType": _MEDIA_TYPE,
        "verificationMaterial": {"publicKey": {"hint": envelope.hint}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64.b64encode(envelope.payload).decode("ascii"),
            "payloadType": _PAYLOAD_TYPE,
            "signatures": [{"sig": base64.b64encode(envelope.signature).decode("ascii"), "keyid": ""}],
        },
    }
    return (json.dumps(document) + "\n").encode("ascii")


def read_envelope(data: bytes) -> Envelope:
    """Parse a signature file. Raises `ValueError` unless it was made with a key."""
    try:
        document = _Document.model_validate_json(data)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
    return Envelope(document.payload, document.signatures[0].sig, document.public_key.hint)


def digests_of(payload: bytes) -> Mapping[str, str]:
    """The files of a statement: path -> SHA-256 in hex. Raises `ValueError` unless it lists whole files."""
    try:
        read = _Statement.model_validate_json(payload)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
    if _root_digest(one.digest for one in read.resources) != read.subject[0].digest:
        raise ValueError("its subject is not the digest of its resources")
    digests = {one.name: one.digest for one in read.resources}
    if len(digests) < len(read.resources):
        raise ValueError("it lists a file twice")
    return digests


def _root_digest(digests: Iterable[str]) -> str:
    return hashlib.sha256(b"".join(bytes.fromhex(digest) for digest in digests)).hexdigest()


def first_problem(error: ValidationError) -> str:
    """The first problem of a document, with its position."""
    first = error.errors(include_url=False)[0]
    return ": ".join(part for part in (".".join(str(key) for key in first["loc"]), first["msg"]) if part)


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
    with ExtraMissing.on_import("bundle", _NEEDS):
        from upwell.edge.bundle.signing_keys import load_public_key
    return load_public_key(path)


def private_key(path: Path, passphrase: Callable[[], str]) -> PrivateKey:
    """The private key in a PEM file; `passphrase` is called if it is encrypted. Raises `ConfigError` likewise."""
    with ExtraMissing.on_import("bundle", _NEEDS):
        from upwell.edge.bundle.signing_keys import load_private_key
    return load_private_key(path, passphrase)

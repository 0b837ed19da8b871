"""A case as one file: facts, inputs and both answers, in the clear or encrypted with a key."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from upwell.edge.case_collection.collected_case import CaseFacts, CollectedCase
from upwell.shared.errors import ConfigError, ExtraMissing
from upwell.shared.files import read_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


MAX_PARCEL_BYTES = 512 << 20
"""Maximum size of the file of one case."""

KEY_BYTES, _NONCE_BYTES = 32, 12

_CLEAR, _SEALED = b"UPWELLCASE1\x00", b"UPWELLCASE1\x01"
_LENGTHS = struct.Struct(">IIII")


class UnreadableCase(ValueError):
    """The file is not a case, was changed, or was encrypted with another key."""


def read_key(path: Path) -> bytes:
    """The 32 bytes of a key file, or its 64 hexadecimal digits. Raises `ConfigError`."""
    data = read_file(path, "a key for cases", 1024)
    if len(data) != KEY_BYTES:
        try:
            data = bytes.fromhex(data.decode("ascii").strip())
        except ValueError:
            data = b""
    if len(data) != KEY_BYTES:
        raise ConfigError.at(path, "expected 32 random bytes, or 64 hexadecimal digits (`openssl rand -hex 32`)")
    _aead(data)
    return data


def pack(case: CollectedCase, key: bytes | None) -> bytes:
    """The file: facts, inputs and both answers, each with its length before it. With a key, all of it is encrypted by
    AES-256-GCM (NIST SP 800-38D) with a random 96-bit nonce; the case's id, which names the file, is authenticated
    too."""
    facts = case.facts.model_dump_json().encode()
    parts = (facts, case.request, case.edge, case.cloud)
    body = _LENGTHS.pack(*map(len, parts)) + b"".join(parts)
    if key is None:
        return _CLEAR + body
    nonce = os.urandom(_NONCE_BYTES)
    return _SEALED + nonce + _aead(key).encrypt(nonce, body, case.facts.id.encode())


def unpack(data: bytes, id: str, key: bytes | None) -> CollectedCase:
    """The case in a file named after `id`. Raises `UnreadableCase`."""
    head, body = data[: len(_CLEAR)], data[len(_CLEAR) :]
    if head == _SEALED:
        if key is None:
            raise UnreadableCase("it is encrypted; name the key file with UPWELL_CASES_KEY_FILE")
        from cryptography.exceptions import InvalidTag

        try:
            body = _aead(key).decrypt(body[:_NONCE_BYTES], body[_NONCE_BYTES:], id.encode())
        except (InvalidTag, ValueError):  # the nonce or tag is truncated, or the tag does not match
            raise UnreadableCase("it was changed, truncated, or encrypted with another key") from None
    elif head != _CLEAR:
        raise UnreadableCase("it is not a case")
    try:
        lengths = _LENGTHS.unpack_from(body)
        if sum(lengths) != len(body) - _LENGTHS.size:
            raise UnreadableCase("it is truncated")
        parts, at = [], _LENGTHS.size
        for length in lengths:
            parts.append(body[at : at + length])
            at += length
        facts = CaseFacts.model_validate_json(parts[0])
    except (struct.error, ValidationError) as error:
        raise UnreadableCase(f"it cannot be read: {type(error).__name__}") from None
    if facts.id != id:
        raise UnreadableCase("its id does not match the file's name")
    return CollectedCase(facts, *parts[1:])


def _aead(key: bytes) -> AESGCM:
    with ExtraMissing.on_import("bundle", "encrypting cases needs the package PACKAGE"):
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    return AESGCM(key)

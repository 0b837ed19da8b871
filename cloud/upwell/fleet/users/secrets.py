"""Secrets that are shown once and stored only as a hash."""

from __future__ import annotations

import hashlib
import secrets


def new_secret(kind: str) -> str:
    """A secret of 256 random bits with the prefix `kind`, by which scanners of source code find leaked ones."""
    return f"{kind}_{secrets.token_urlsafe(32)}"


def digest_of(secret: str) -> str:
    """SHA-256 of a secret. No slow hash: nobody guesses 256 random bits."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def new_id() -> str:
    """A random id of 64 bits, in hexadecimal."""
    return secrets.token_hex(8)

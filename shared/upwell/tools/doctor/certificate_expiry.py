"""When certificates expire. The only module here that needs the extra `bundle`."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from cryptography import x509


def ends(path: Path) -> float:
    """The earliest expiry among the certificates of this PEM file, in Unix seconds. Raises `OSError`, `ValueError`."""
    found = x509.load_pem_x509_certificates(path.read_bytes())
    return min(_end(one).timestamp() for one in found)


def _end(certificate: x509.Certificate) -> datetime:
    return certificate.not_valid_after_utc.astimezone(timezone.utc)

"""When certificates end. The one module here that needs the extra `bundle`."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from cryptography import x509


def ends(path: Path) -> float:
    """When the first certificate of this PEM file to end does so, in Unix seconds. Raises `OSError`, `ValueError`."""
    found = x509.load_pem_x509_certificates(path.read_bytes())
    return min(_end(one).timestamp() for one in found)


def _end(certificate: x509.Certificate) -> datetime:
    return certificate.not_valid_after_utc.astimezone(timezone.utc)

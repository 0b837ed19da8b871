"""What the tests of the wire share: a certificate authority, and the types of their fixtures."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from upwell.shared.oip.client import OipClient
from upwell.shared.oip.server import RunningServer

TIMEOUT_S = 10.0
"""For calls that should end long before."""

Serve: TypeAlias = Callable[..., RunningServer]
Connect: TypeAlias = Callable[..., OipClient]


@dataclass(frozen=True)
class Authority:
    """Issues certificates for 127.0.0.1 and localhost, valid for an hour."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def make(cls, name: str = "test authority") -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, subject, key).add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        return cls(key, builder.sign(key, hashes.SHA256()))

    def write(self, path: Path) -> Path:
        path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        return path

    def issue(self, cert: Path, key: Path, name: str) -> None:
        """Write a certificate for `name` and its key."""
        private = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        hosts = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        )
        signed = _builder(subject, self.certificate.subject, private).add_extension(hosts, False)
        cert.write_bytes(signed.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        key.write_bytes(
            private.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
    )

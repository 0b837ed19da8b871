"""Certificates for the tests: an authority and what it signs, fresh for each run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_SINCE = timedelta(minutes=-5)
"""A certificate that is made now has been good for a while."""


@dataclass(frozen=True)
class Pair:
    """PEM files of a certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates for 127.0.0.1 and localhost; its own is at `ca`."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        signing = x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
            key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        self._certificate = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(signing, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
        )
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(_pem(self._certificate.sign(self._key, hashes.SHA256())))

    def sign(self, name: str, *, starts_in: timedelta = _SINCE, host: str = "localhost") -> Pair:
        """A new certificate whose common name is `name`, good for a day from then on and, if `localhost`, also for the
        address of this machine."""
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        self.issue(pair.cert, pair.key, name, starts_in=starts_in, host=host)
        return pair

    def issue(
        self, cert: Path, key_path: Path, name: str, *, starts_in: timedelta = _SINCE, host: str = "localhost"
    ) -> None:
        """The same at those paths."""
        key = ec.generate_private_key(ec.SECP256R1())
        address = [x509.IPAddress(ip_address("127.0.0.1"))] if host == "localhost" else []
        hosts = x509.SubjectAlternativeName([x509.DNSName(host), *address])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())  # Python 3.13 asks for it
        certificate = (
            _builder(_named(name), self._name, key, starts_in)
            .add_extension(hosts, critical=False)
            .add_extension(issuer, critical=False)
        )
        cert.write_bytes(_pem(certificate.sign(self._key, hashes.SHA256())))
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, starts_in: timedelta = _SINCE
) -> x509.CertificateBuilder:
    start = datetime.now(timezone.utc) + starts_in
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=1))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)

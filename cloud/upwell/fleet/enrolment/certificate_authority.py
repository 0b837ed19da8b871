"""The fleet's certificate authority: its key, and the certificates that it signs. Time is an argument."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from upwell.fleet.config import AuthoritySection
from upwell.shared.errors import ConfigError, InvalidRequest
from upwell.shared.files import read_file, write_whole

MAX_CSR_BYTES = 16 << 10
_AUTHORITY_S = 20 * 365 * 86400.0
_SERVER_S = 398 * 86400.0
"""Lifetime of the service's certificate. Some clients refuse longer ones, and a new one is made every hour."""
_SKEW_S = 3600.0
"""How far certificates are backdated, for devices with a slow clock."""


@dataclass(frozen=True)
class IssuedCertificate:
    """A device's certificate: PEM, its serial number in hexadecimal, and its end of validity (Unix seconds)."""

    pem: bytes
    serial: str
    expires_unix_s: float


@dataclass(frozen=True)
class SigningRequest:
    """A device's request for a certificate: a P-256 key that it has proved to hold."""

    key: ec.EllipticCurvePublicKey
    key_sha256: str


class Authority:
    """Signs for one fleet. Made by `open_authority`."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key
        self.pem = certificate.public_bytes(serialization.Encoding.PEM)
        self.fingerprint = certificate.fingerprint(hashes.SHA256()).hex()

    def sign_device(
        self, request: SigningRequest, device_id: str, now_unix_s: float, age_s: float
    ) -> IssuedCertificate:
        """A certificate for a device's key, with its id as common name."""
        expires = min(now_unix_s + age_s, self._certificate.not_valid_after_utc.timestamp())
        builder = self._builder(request.key, device_id, now_unix_s - _SKEW_S, expires)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        return IssuedCertificate(pem, serial_of(certificate), expires)

    def make_server(self, names: Sequence[str], now_unix_s: float) -> tuple[bytes, bytes]:
        """A certificate chain for the service itself under these names, and its new key: both PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(key.public_key(), names[0][:64], now_unix_s - _SKEW_S, now_unix_s + _SERVER_S)
        builder = builder.add_extension(x509.SubjectAlternativeName([*map(_alternative, names)]), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM) + self.pem, _key_pem(key)

    def _builder(
        self, key: ec.EllipticCurvePublicKey, name: str, from_unix_s: float, to_unix_s: float
    ) -> x509.CertificateBuilder:
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            _unsigned(key, _name(name), self._certificate.subject, (from_unix_s, to_unix_s))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(issuer_key, critical=False)
        )


def open_authority(files: AuthoritySection, now_unix_s: float) -> Authority:
    """The authority of these files, which are created if both are missing. Raises `ConfigError`."""
    if not files.cert.exists() and not files.key.exists():
        _make(files, now_unix_s)
    where = "fleet.authority.cert"
    try:
        certificate = x509.load_pem_x509_certificate(read_file(files.cert, "the authority's certificate"))
        key = serialization.load_pem_private_key(read_file(files.key, "the authority's key"), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError.at(files.cert, f"this and {files.key} are not a certificate and key in PEM", where) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ConfigError.at(files.cert, f"{files.key} is not its key; expected a key on P-256", where)
    if certificate.not_valid_after_utc.timestamp() <= now_unix_s:
        raise ConfigError.at(files.cert, "the authority's certificate has expired", where)
    return Authority(certificate, key)


def read_request(pem: bytes) -> SigningRequest:
    """The certificate request of a device. Raises `InvalidRequest`."""
    if len(pem) > MAX_CSR_BYTES:
        raise InvalidRequest(f"the certificate signing request is larger than {MAX_CSR_BYTES} bytes")
    try:
        request = x509.load_pem_x509_csr(pem)
        key, is_signed = request.public_key(), request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature):
        raise InvalidRequest("expected a certificate signing request in PEM form") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidRequest("expected a certificate signing request for a key on P-256")
    if not is_signed:
        raise InvalidRequest("the certificate signing request is not signed by its own key")
    return SigningRequest(key, _key_digest(key))


def serial_of(certificate: x509.Certificate) -> str:
    """The serial number as the registry stores it."""
    return f"{certificate.serial_number:x}"


def serial_of_der(data: bytes) -> str:
    """The serial number of a DER certificate that TLS has verified."""
    return serial_of(x509.load_der_x509_certificate(data))


def _make(files: AuthoritySection, now_unix_s: float) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Upwell fleet")
    usage = x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _unsigned(key.public_key(), name, name, (now_unix_s - _SKEW_S, now_unix_s + _AUTHORITY_S))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    try:
        for path in (files.key, files.cert):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(files.key, _key_pem(key), 0o600)  # first: the key alone promises nothing yet
        write_whole(files.cert, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    except OSError as error:
        where = error.filename or files.cert
        raise ConfigError.at(
            Path(os.fsdecode(where)), f"cannot be written: {error.strerror}", "fleet.authority"
        ) from None


def _unsigned(
    key: ec.EllipticCurvePublicKey, subject: x509.Name, issuer: x509.Name, holds_unix_s: tuple[float, float]
) -> x509.CertificateBuilder:
    start = datetime.fromtimestamp(int(holds_unix_s[0]), timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(seconds=int(holds_unix_s[1] - holds_unix_s[0])))
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _key_digest(key: ec.EllipticCurvePublicKey) -> str:
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    digest = hashes.Hash(hashes.SHA256())
    digest.update(der)
    return digest.finalize().hex()

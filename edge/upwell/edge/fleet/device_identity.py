"""The device's identity: a key that never leaves it, its instance UID, and the certificate signed by the service."""

from __future__ import annotations

import contextlib
import logging
import math
import time
import uuid
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from upwell.shared.errors import ConfigError
from upwell.shared.files import read_file, write_whole
from upwell.shared.opamp import new_instance_uid
from upwell.shared.platform.system_clock import uptime_s

FOLDER_NAME = "fleet"
"""The folder in the agent's `state_dir`."""

_RENEW_AT = 2 / 3
"""The share of a certificate's lifetime after which a new one is requested."""

_ASK_AGAIN_AFTER = 0.1
"""The least share of its lifetime between two requests, in time since the boot: the wall clock may be years ahead, and
a device that asked with each poll would soon be refused."""

_log = logging.getLogger(__name__)


class FleetIdentity:
    """The device's files in `folder`: `key.pem` (mode 0600), `instance_uid`, and once it has enrolled `cert.pem`.

    Missing files are created. A key that cannot be read is set aside for a new one, and the device must enrol again.
    Raises `ConfigError` if nothing can be written.
    """

    def __init__(self, folder: Path) -> None:
        self.key_file, self.certificate_file = folder / "key.pem", folder / "cert.pem"
        with ConfigError.on_os_error(folder, "cannot be used", "agent.state_dir"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._key = _key(self.key_file)
            self.instance_uid = _instance_uid(folder / "instance_uid")
        self._certificate = self._stored()
        self._taken_s = -math.inf

    @property
    def is_enrolled(self) -> bool:
        """Whether there is a certificate for the key."""
        return self._certificate is not None

    def wants_certificate(self, now_unix_s: float) -> bool:
        """Whether there is no certificate, or it is time to renew it."""
        if self._certificate is None:
            return True
        start, end = (
            one.timestamp() for one in (self._certificate.not_valid_before_utc, self._certificate.not_valid_after_utc)
        )
        is_new = uptime_s() - self._taken_s < _ASK_AGAIN_AFTER * (end - start)
        return not is_new and now_unix_s >= start + _RENEW_AT * (end - start)

    def has_expired(self, now_unix_s: float) -> bool:
        """Whether there is a certificate that has expired by this clock, which may be wrong."""
        return self._certificate is not None and now_unix_s >= self._certificate.not_valid_after_utc.timestamp()

    def request(self) -> bytes:
        """A certificate signing request (PEM)."""
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.instance_uid.hex())])
        request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(self._key, hashes.SHA256())
        return request.public_bytes(serialization.Encoding.PEM)

    def take(self, pem: bytes) -> str:
        """Use this certificate from now on; returns why it is refused, or "". Raises `OSError` if it cannot be
        stored."""
        certificate = _certificate(pem)
        if certificate is None or certificate.public_key() != self._key.public_key():
            return "the offered certificate is not for this device's key"
        self._taken_s = uptime_s()  # also if it cannot be stored
        write_whole(self.certificate_file, certificate.public_bytes(serialization.Encoding.PEM), 0o600)
        self._certificate = certificate
        return ""

    def _stored(self) -> x509.Certificate | None:
        if not self.certificate_file.is_file():
            return None
        try:
            found = _certificate(read_file(self.certificate_file, "the certificate"))
        except ConfigError:
            return None
        return found if found is not None and found.public_key() == self._key.public_key() else None


def _certificate(pem: bytes) -> x509.Certificate | None:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError:
        return None


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    if path.exists():
        try:
            found = serialization.load_pem_private_key(path.read_bytes(), None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            found = None
        if isinstance(found, ec.EllipticCurvePrivateKey):
            with contextlib.suppress(OSError):  # a read-only disk
                path.chmod(0o600)
            return found
        _log.error("%s is damaged: it is set aside, and the device must enrol again", path)
        path.replace(path.with_suffix(".unreadable"))
    made = ec.generate_private_key(ec.SECP256R1())
    pem = made.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_whole(path, pem, 0o600)
    return made


def _instance_uid(path: Path) -> bytes:
    """The stored UID, or a new one."""
    if path.exists():
        with contextlib.suppress(ValueError):
            return uuid.UUID(path.read_text("ascii").strip()).bytes
    made = new_instance_uid(time.time())
    write_whole(path, str(made).encode(), 0o600)
    return made.bytes

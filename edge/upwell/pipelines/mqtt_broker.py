"""What publishers and subscribers of an MQTT broker share: its address, TLS, the password and ids of clients."""

from __future__ import annotations

import secrets
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from upwell.shared.config.security import TlsFiles
from upwell.shared.errors import ConfigError
from upwell.shared.files import read_file

_PORTS = {"mqtt": 1883, "mqtts": 8883}


class _ClosedOnFailure(ssl.SSLSocket):
    """A socket that is closed if the handshake fails. paho leaves it to the garbage collector."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except OSError:
            self.close()
            raise


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """A TLS context with the configured issuers and client certificate. Raises `ConfigError` for unusable files."""
    try:
        context = ssl.create_default_context(cafile=None if files.ca is None else str(files.ca))
        if files.cert is not None:
            context.load_cert_chain(files.cert, files.key)
    except OSError as error:
        names = ", ".join(map(str, files.paths))
        raise ConfigError.at(None, f"{names}: cannot be used for TLS: {error.strerror or error}") from None
    context.sslsocket_class = _ClosedOnFailure
    return context


def parse_broker(broker: str) -> tuple[str, int, bool]:
    """Host, port, and whether the broker is reached over TLS. Raises `ConfigError`, which does not show the address."""
    try:
        parts = urlsplit(broker)
        port = parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        raise _unusable() from None
    if not parts.hostname or parts.username is not None or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise _unusable()
    return parts.hostname, port, parts.scheme == "mqtts"


def _unusable() -> ConfigError:
    text = "expected mqtts://HOST[:PORT] or mqtt://HOST[:PORT]; user and password belong in a file"
    return ConfigError.at(None, text, "broker")


def new_client_id() -> str:
    """An id for all connections of one client: a broker ends a former one, which a network may have dropped, before it
    accepts the next.
    """
    return f"upwell{secrets.token_hex(8)}"  # 22 characters: all brokers take 23


def read_password(path: Path) -> str:
    """The password in a file of one line. Raises `ConfigError`, which does not show it."""
    try:
        password = read_file(path, "a password", max_bytes=4096).decode().rstrip("\r\n")
    except UnicodeDecodeError:
        password = ""
    if not password or not password.isprintable():
        raise ConfigError.at(path, "expected a single line with the password")
    return password

"""TLS contexts of an HTTP server and client, from PEM files that may be replaced while the program runs."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from typing import Any

from upwell.shared.config.security import TlsFiles
from upwell.shared.errors import ConfigError
from upwell.shared.oip.auth.caller import usable_name
from upwell.shared.oip.auth.grpc_credentials import watch_pem
from upwell.shared.platform.watched_files import WatchedFiles

_READS, _REPLACED_S = 10, 0.02
"""Delay before new files are loaded: replacing certificate and key, two files, takes a moment."""


def watch_server_context(files: TlsFiles) -> WatchedFiles[ssl.SSLContext]:
    """The TLS context of a server's connections, renewed when a file changes. Raises `ConfigError`."""
    return WatchedFiles(files.paths, lambda: _server_context(files))


def watch_client_context(files: TlsFiles) -> WatchedFiles[ssl.SSLContext]:
    """The TLS context of a client's connections, renewed when a file changes. Raises `ConfigError`."""
    return WatchedFiles(files.paths, lambda: _client_context(files))


def _client_context(files: TlsFiles) -> ssl.SSLContext:
    pem = watch_pem(files).get()
    context = _bare(ssl.PROTOCOL_TLS_CLIENT, files)
    if pem.ca is not None:
        context.load_verify_locations(cadata=pem.ca.decode("ascii"))
    else:
        context.load_default_certs()
    return context


def _server_context(files: TlsFiles) -> ssl.SSLContext:
    if files.cert is None or files.key is None:
        raise ConfigError.at(None, "TLS on a server needs a certificate and its key")
    pem = watch_pem(files).get()
    context = _bare(ssl.PROTOCOL_TLS_SERVER, files)
    if pem.ca is not None:
        context.load_verify_locations(cadata=pem.ca.decode("ascii"))
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _bare(side: ssl._SSLMethod, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if files.cert is None:
        return context
    for _ in range(_READS):
        try:
            context.load_cert_chain(files.cert, files.key, password=lambda: b"")
        except (OSError, ValueError):  # replaced since the check, perhaps only one of the two
            time.sleep(_REPLACED_S)
        else:
            return context
    raise ConfigError.at(files.cert, "the certificate or its key changed while it was read")


def certificate_name(certificate: Mapping[str, Any] | None) -> str:
    """The common name in a client's certificate, in the form of the `ssl` module; "" without one."""
    subject: Any = (certificate or {}).get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    return usable_name(names[0]) if names else ""

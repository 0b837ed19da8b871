"""TLS from PEM files that may be replaced while the program runs: credentials for gRPC, contexts for HTTP."""

from __future__ import annotations

import functools
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc

from upwell.shared.config.security import TlsFiles
from upwell.shared.errors import ConfigError
from upwell.shared.files import read_file
from upwell.shared.oip.auth.caller import usable_name
from upwell.shared.platform.watched_files import WatchedFiles

_TRIES = 5
_SETTLE_S = 0.25


@dataclass(frozen=True)
class PemFiles:
    """The checked contents of `TlsFiles`, which include the key and so are never printed."""

    cert: bytes | None
    key: bytes | None
    ca: bytes | None

    def __repr__(self) -> str:
        """Without the contents."""
        return "PemFiles(...)"


def watch_pem(files: TlsFiles) -> WatchedFiles[PemFiles]:
    """Watch the files; they are read and checked again on change. Raises `ConfigError` if they are wrong now."""
    return WatchedFiles(files.paths, lambda: _load(files))


def _load(files: TlsFiles) -> PemFiles:
    if (files.cert is None) != (files.key is None):
        raise ConfigError.at(files.cert or files.key, "a certificate and its key go together; only one was given")
    for _ in range(_TRIES):
        pem = _read(files)
        problem = _problem(files, pem)
        # The check read the files itself, so one of a pair may have been replaced in between.
        if _read(files) == pem:
            if problem is not None:
                raise problem
            return pem
    raise ConfigError.at(files.cert, "the certificate, its key or the CA certificates changed while they were read")


def _problem(files: TlsFiles, pem: PemFiles) -> ConfigError | None:
    try:
        if files.cert and files.key:
            _check_pair(files.cert, files.key)
        if files.ca and pem.ca is not None:
            _check_ca(files.ca, pem.ca)
    except ConfigError as error:
        return error
    return None


def _read(files: TlsFiles) -> PemFiles:
    return PemFiles(
        cert=read_file(files.cert, "the certificate") if files.cert else None,
        key=read_file(files.key, "the key") if files.key else None,
        ca=read_file(files.ca, "the CA certificates") if files.ca else None,
    )


def _check_pair(cert: Path, key: Path) -> None:
    try:
        # The callback keeps OpenSSL from asking for a passphrase on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=lambda: b"")
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise ConfigError.at(
            cert, f"this and {key} are not a certificate and key in PEM form without a passphrase ({reason})"
        ) from None


def _check_ca(path: Path, data: bytes) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=data.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise ConfigError.at(path, "expected one or more CA certificates in PEM form") from None


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """TLS for one port of a server; client certificates are required if `files.ca` is set. Raises `ConfigError`.

    Each new connection uses the files as they are then; a broken new set is logged, and the former one stays.
    """
    watched = watch_pem(files)
    in_force = watched.get()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal in_force
        pem = watched.get()
        if pem is in_force:
            return None
        # gRPC asks once per new connection, one after another, and then starts the handshake without a lock; replacing
        # certificates that a handshake uses at that moment would crash the process. After this pause earlier handshakes
        # are past that point, and later ones wait.
        time.sleep(_SETTLE_S)
        in_force = pem
        return _configuration(pem)

    # gRPC documents None as "no change", but its stubs do not allow it.
    ask = cast("Callable[[], grpc.ServerCertificateConfiguration]", changed)
    return grpc.dynamic_ssl_server_credentials(
        _configuration(in_force), ask, require_client_authentication=files.ca is not None
    )


def _configuration(pem: PemFiles) -> grpc.ServerCertificateConfiguration:
    if pem.key is None or pem.cert is None:
        raise ConfigError.at(None, "TLS on a server needs a certificate and its key")
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.ca)


def channel_credentials(pem: PemFiles) -> grpc.ChannelCredentials:
    """TLS for a channel, which uses these contents for its lifetime: replaced files need a new channel."""
    return grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)


_READS, _REPLACED_S = 10, 0.02
"""Delay before new files are loaded: replacing certificate and key, two files, takes a moment."""


def watch_server_context(files: TlsFiles) -> WatchedFiles[ssl.SSLContext]:
    """The TLS context of a server's connections, renewed when a file changes. Raises `ConfigError`."""
    return WatchedFiles(files.paths, lambda: _server_context(files))


def watch_client_context(files: TlsFiles) -> WatchedFiles[ssl.SSLContext]:
    """The TLS context of a client's connections, renewed when a file changes. Raises `ConfigError` if the files are
    wrong now.

    Clients of the same files share it: loading the system's certificates takes tens of milliseconds, and a client
    that replaces one whose connection is dead is made while a request waits.
    """
    _load(files)  # the shared context may be that of former files
    return _shared_context(files)


@functools.lru_cache(maxsize=16)
def _shared_context(files: TlsFiles) -> WatchedFiles[ssl.SSLContext]:
    system = [] if files.ca is not None else [Path(path) for path in ssl.get_default_verify_paths()[:2] if path]
    return WatchedFiles([*files.paths, *system], lambda: _client_context(files))


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

"""The TLS context of HTTP clients: made once, and again when the certificates change."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from upwell.shared.config.security import ClientSecurity, TlsFiles
from upwell.shared.errors import ConfigError
from upwell.shared.oip.auth import tls_credentials
from upwell.shared.oip.http.client.client import HttpClient

if TYPE_CHECKING:
    from tests.faults.certificates import Authority


def test_the_system_s_certificates_are_loaded_once_and_again_when_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store.pem"
    store.write_text("")
    monkeypatch.setenv("SSL_CERT_FILE", str(store))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    loaded: list[ssl.SSLContext] = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda context: loaded.append(context))
    tls_credentials._shared_context.cache_clear()
    try:
        clients = [HttpClient("https://infer.example.com") for _ in range(3)]
        assert len(loaded) == 1
        os.utime(store, (1, 1))
        assert tls_credentials.watch_client_context(TlsFiles()).get() is loaded[1]
        for client in clients:
            client.close()
    finally:
        tls_credentials._shared_context.cache_clear()


def test_files_that_are_broken_or_gone_are_refused_though_they_were_good_before(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = authority.sign("camera-1")
    files = TlsFiles(*(tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem")))
    good = dict(zip(files.paths, (own.cert.read_bytes(), own.key.read_bytes(), authority.ca.read_bytes()), strict=True))

    def client() -> None:
        HttpClient("https://infer.example.com", ClientSecurity(files)).close()

    for path, content in good.items():
        path.write_bytes(content)
    client()
    for path, content in good.items():
        path.write_text("no certificate")
        with pytest.raises(ConfigError, match="PEM form"):
            client()
        path.unlink()
        with pytest.raises(ConfigError, match=path.name):
            client()
        path.write_bytes(content)
        client()

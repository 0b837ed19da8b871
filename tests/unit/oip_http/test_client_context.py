"""The TLS context of HTTP clients: made once, and again when the certificates change."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from upwell.shared.config.security import TlsFiles
from upwell.shared.oip.auth.tls_credentials import watch_client_context
from upwell.shared.oip.http.client.client import HttpClient


def test_the_system_s_certificates_are_loaded_once_and_again_when_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store.pem"
    store.write_text("")
    monkeypatch.setenv("SSL_CERT_FILE", str(store))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    loaded: list[ssl.SSLContext] = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda context: loaded.append(context))
    watch_client_context.cache_clear()
    try:
        clients = [HttpClient("https://infer.example.com") for _ in range(3)]
        assert len(loaded) == 1
        os.utime(store, (1, 1))
        assert watch_client_context(TlsFiles()).get() is loaded[1]
        for client in clients:
            client.close()
    finally:
        watch_client_context.cache_clear()

"""Which proxy the environment names, and for whom."""

from __future__ import annotations

import pytest

from upwell.shared.config.addresses import parse_endpoint
from upwell.shared.oip.http.client.environment_proxy import Proxy, proxy_for

PROXY = Proxy("proxy.example", 3128)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def found(endpoint: str) -> Proxy | None:
    return proxy_for(parse_endpoint(endpoint))


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY"])
@pytest.mark.parametrize("url", ["http://proxy.example:3128", "http://proxy.example:3128/", "proxy.example:3128"])
def test_it_is_for_https_off_this_machine(monkeypatch: pytest.MonkeyPatch, name: str, url: str) -> None:
    monkeypatch.setenv(name, url)
    assert found("https://infer.example.com") == PROXY
    assert found("https://localhost") is None
    assert found("https://127.0.0.1:8443") is None
    assert found("http://infer.example.com") is None


@pytest.mark.parametrize(
    ("no_proxy", "goes_without"),
    [
        ("infer.example.com", True),
        ("INFER.example.COM ,x", True),
        ("example.com", True),
        (".example.com", True),
        ("*.example.com", True),
        ("*", True),
        ("infer.example.com:8443", True),
        ("infer.example.com:443", False),
        ("fer.example.com", False),
        ("infer.example", False),
        ("", False),
        (",", False),
    ],
)
def test_names_that_go_without(monkeypatch: pytest.MonkeyPatch, no_proxy: str, goes_without: bool) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert (found("https://infer.example.com:8443") is None) is goes_without


@pytest.mark.parametrize(
    ("no_proxy", "goes_without"),
    [("10.1.2.3", True), ("10.0.0.0/8", True), ("10.2.0.0/16", False), ("10.0.0.0/99", False)],
)
def test_addresses_that_go_without(monkeypatch: pytest.MonkeyPatch, no_proxy: str, goes_without: bool) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert (found("https://10.1.2.3") is None) is goes_without


def test_a_password_is_sent_and_never_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:hunter%3A2@proxy.example")
    proxy = found("https://infer.example.com")
    assert proxy is not None
    assert proxy.authorization == "Basic bWU6aHVudGVyOjI="
    assert "hunter" not in f"{proxy} {proxy!r}"
    assert "aHVudGVy" not in f"{proxy} {proxy!r}"

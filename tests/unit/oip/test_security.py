"""Addresses, and what may be reached or called from outside this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from upwell.shared.config.addresses import Address, parse_address, parse_endpoint
from upwell.shared.config.security import ClientSecurity, ServerSecurity, TlsFiles, check_endpoint, check_exposure
from upwell.shared.errors import ConfigError

TLS = TlsFiles(cert=Path("s.pem"), key=Path("s.key"))
MUTUAL = TlsFiles(cert=Path("s.pem"), key=Path("s.key"), ca=Path("ca.pem"))
TOKENS = Path("tokens.yaml")


@pytest.mark.parametrize(
    ("text", "address", "is_loopback"),
    [
        ("127.0.0.1:8001", Address("127.0.0.1", 8001), True),
        ("127.8.9.1:0", Address("127.8.9.1", 0), True),
        ("localhost:1", Address("localhost", 1), True),
        ("[::1]:65535", Address("::1", 65535), True),
        ("unix:/run/a.sock", Address(socket_path=Path("/run/a.sock")), True),
        ("unix:a.sock", Address(socket_path=Path("a.sock")), True),
        ("192.168.0.1:8001", Address("192.168.0.1", 8001), False),
        ("[::]:8001", Address("::", 8001), False),
        ("10.0.0.1:8001", Address("10.0.0.1", 8001), False),
        ("infer.example.com:8001", Address("infer.example.com", 8001), False),
        ("localhost.example.com:8001", Address("localhost.example.com", 8001), False),
        ("127.0.0.1.example.com:8001", Address("127.0.0.1.example.com", 8001), False),
        ("[::ffff:10.0.0.1]:8001", Address("::ffff:10.0.0.1", 8001), False),
    ],
)
def test_addresses(text: str, address: Address, is_loopback: bool) -> None:
    found = parse_address(text)
    assert found == address
    assert str(found) == text
    assert found.is_loopback is is_loopback


def test_a_socket_may_be_written_as_a_url() -> None:
    assert parse_address("unix:///run/a.sock") == Address(socket_path=Path("/run/a.sock"))


@pytest.mark.parametrize(
    "text",
    ["", ":8001", "host", "host:", "host:-1", "host:65536", "host:99999999999", "host:8001x", "host:٣", "::1:8001",
     "[::1]", "[host]:1", "http://host:1", "a b:1", "user@host:1", "unix:", "unix:a\0b", "unix-abstract:a", "dns:///h:1",
     "ho\nst:1"],
)  # fmt: skip
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected .*unix:PATH"):
        parse_address(text)


@pytest.mark.parametrize(
    ("listen", "security"),
    [
        (["127.0.0.1:1", "[::1]:1", "localhost:1", "unix:a"], ServerSecurity()),
        (["127.0.0.1:1"], ServerSecurity(tokens=TOKENS)),
        (["0.0.0.0:1"], ServerSecurity(tls=MUTUAL)),
        (["0.0.0.0:1"], ServerSecurity(tls=TLS, tokens=TOKENS)),
        (["0.0.0.0:1"], ServerSecurity(insecure=True)),
        (["0.0.0.0:1"], ServerSecurity(tokens=TOKENS, insecure=True)),
    ],
)
def test_protected_servers_may_listen(listen: list[str], security: ServerSecurity) -> None:
    check_exposure(listen, security)


@pytest.mark.parametrize(
    ("listen", "security", "message"),
    [
        (["0.0.0.0:1"], ServerSecurity(), "0.0.0.0:1 can be reached .* tokens or a client CA"),
        (["127.0.0.1:1", "[::]:2"], ServerSecurity(), r"\[::\]:2 can be reached"),
        (["0.0.0.0:1"], ServerSecurity(tls=TLS), "callers would not be authenticated"),
        (["0.0.0.0:1"], ServerSecurity(tokens=TOKENS), "tokens would cross the network in clear"),
        (["myhost:1"], ServerSecurity(), "or write `insecure: true`"),
    ],
)
def test_open_servers_are_refused(listen: list[str], security: ServerSecurity, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_exposure(listen, security)


def test_a_call_over_a_network_needs_tls_or_a_word() -> None:
    assert check_endpoint("127.0.0.1:1", ClientSecurity()).port == 1
    assert check_endpoint("unix:a", ClientSecurity(token_file=Path("t"))).is_loopback
    assert check_endpoint("example.com:1", ClientSecurity(tls=TlsFiles())).host == "example.com"
    assert check_endpoint("example.com:1", ClientSecurity(insecure=True))
    with pytest.raises(ConfigError, match=r"requests to example.com:1 would cross the network in clear"):
        check_endpoint("example.com:1", ClientSecurity(token_file=Path("t")))


@pytest.mark.parametrize(
    ("text", "address", "is_loopback"),
    [
        ("dns:///infer.example.com:8001", Address("infer.example.com", 8001, name_server=""), False),
        ("dns:///localhost:1", Address("localhost", 1, name_server=""), True),
        ("dns://10.0.0.53:5353/infer:1", Address("infer", 1, name_server="10.0.0.53:5353"), False),
        ("dns:///[::1]:1", Address("::1", 1, name_server=""), True),
        ("infer.example.com:8001", Address("infer.example.com", 8001), False),
        ("unix:a.sock", Address(socket_path=Path("a.sock")), True),
    ],
)
def test_an_endpoint_may_be_all_servers_of_a_name(text: str, address: Address, is_loopback: bool) -> None:
    found = parse_endpoint(text)
    assert (found, str(found), found.is_loopback) == (address, text, is_loopback)


@pytest.mark.parametrize(
    "text",
    [
        "dns:",
        "dns:h:1",
        "dns:/h:1",
        "dns://h:1",
        "dns:///h",
        "dns:///:1",
        "dns:///h:1/x",
        "dns:///unix:a",
        "dns:///h:99999",
    ],
)
def test_what_names_no_servers(text: str) -> None:
    with pytest.raises(ConfigError, match="expected dns:///NAME:PORT"):
        parse_endpoint(text)


def test_a_name_s_servers_are_on_a_network_too() -> None:
    with pytest.raises(ConfigError, match="would cross the network in clear"):
        check_endpoint("dns:///infer.example.com:1", ClientSecurity())
    assert check_endpoint("dns:///infer.example.com:1", ClientSecurity(insecure=True)).name_server == ""


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("https://infer.example.com", Address("infer.example.com", 443, scheme="https")),
        ("https://infer.example.com/", Address("infer.example.com", 443, scheme="https")),
        ("https://infer.example.com:8443/a/b-1", Address("infer.example.com", 8443, scheme="https", prefix="/a/b-1")),
        ("http://127.0.0.1", Address("127.0.0.1", 80, scheme="http")),
        ("https://[::1]:1/v", Address("::1", 1, scheme="https", prefix="/v")),
    ],
)
def test_an_endpoint_may_be_a_url(text: str, address: Address) -> None:
    found = parse_endpoint(text)
    assert found == address
    assert parse_endpoint(str(found)) == address


@pytest.mark.parametrize(
    "text",
    ["https://", "https:///a", "https://h:", "https://h:65536", "https://h:x", "https://u:hunter2@h", "https://h?q=1",
     "https://h#f", "https://h//a", "https://h/../a", "https://h/a b", "https://h\r\n", "https:h", "https://[::1",
     "https://unix:/a", "https://h/%2e", "https://ü.example"],
)  # fmt: skip
def test_a_url_that_is_more_than_a_host_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ConfigError, match="expected https://HOST") as error:
        parse_endpoint(text)
    assert "hunter2" not in str(error.value)


def test_https_needs_nothing_beside_it_and_http_an_excuse() -> None:
    assert check_endpoint("https://infer.example.com", ClientSecurity()).scheme == "https"
    assert check_endpoint("http://infer.example.com", ClientSecurity(insecure=True)).port == 80
    assert check_endpoint("http://localhost:8000", ClientSecurity()).is_loopback
    for endpoint, security in (("http://h", ClientSecurity()), ("http://localhost", ClientSecurity(tls=TlsFiles()))):
        with pytest.raises(ConfigError):
            check_endpoint(endpoint, security)

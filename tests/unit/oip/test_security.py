"""Addresses, and what may be reached or called from outside this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from upwell.shared.errors import ConfigError
from upwell.shared.oip.security import (
    Address,
    ClientSecurity,
    ServerSecurity,
    TlsFiles,
    check_endpoint,
    check_exposure,
    parse_address,
)

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
        (["0.0.0.0:1"], ServerSecurity(tls=TLS), "nobody would be asked who they are"),
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

"""Whom a client of either transport believes, as whom it comes, and how changed files take over."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.contract.clients.harness import REQUEST, TIMEOUT_S, Connect, Serve, Transport, error_of
from tests.faults.certificates import Authority
from upwell.shared.config.security import ClientSecurity, ServerSecurity, TlsFiles
from upwell.shared.errors import ConfigError
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.client.client import RemoteErrorKind
from upwell.shared.oip.grpc.server.server import Connections
from upwell.shared.oip.open_client import open_client

UNBELIEVABLE: Mapping[str, dict[str, Any]] = {
    "expired": {"starts_in": timedelta(days=-3)},
    "not yet valid": {"starts_in": timedelta(days=1)},
    "of another name": {"host": "other.example"},
}
Secure: TypeAlias = Callable[..., ServerSecurity]


@pytest.fixture
def secure(authority: Authority) -> Secure:
    """How a server is protected that has a certificate made to order, and asks for one if `asks`."""

    def make(*, asks: bool = False, **certificate: Any) -> ServerSecurity:
        pair = authority.sign("server", **certificate)
        return ServerSecurity(TlsFiles(pair.cert, pair.key, authority.ca if asks else None))

    return make


@pytest.mark.parametrize("how", UNBELIEVABLE)
def test_a_certificate_that_is_not_to_be_believed(
    serve: Serve, connect: Connect, secure: Secure, authority: Authority, fake: FakeDataplane, how: str
) -> None:
    client = connect(
        serve(connections=Connections(secure(**UNBELIEVABLE[how]))), ClientSecurity(TlsFiles(ca=authority.ca))
    )
    error = error_of(lambda: client.infer(REQUEST, TIMEOUT_S))
    assert (error.kind, error.retry_after_s) == (RemoteErrorKind.CERTIFICATE, None)
    assert fake.requests == []


def test_an_authority_that_nobody_here_knows(serve: Serve, connect: Connect, secure: Secure, tmp_path: Path) -> None:
    server = serve(connections=Connections(secure()))
    for files in (TlsFiles(), TlsFiles(ca=Authority(tmp_path, "stranger").ca)):
        client = connect(server, ClientSecurity(files))
        assert error_of(partial(client.server_live, TIMEOUT_S)).kind is RemoteErrorKind.CERTIFICATE


def test_tls_on_one_side_alone_is_no_connection(
    serve: Serve, connect: Connect, secure: Secure, authority: Authority
) -> None:
    trusting = ClientSecurity(TlsFiles(ca=authority.ca))
    assert connect(serve(connections=Connections(secure())), trusting).server_live(TIMEOUT_S)
    for client in (connect(serve(connections=Connections(secure()))), connect(serve(), trusting)):
        assert error_of(partial(client.infer, REQUEST, TIMEOUT_S)).kind is RemoteErrorKind.UNAVAILABLE


def test_a_client_shows_its_certificate_and_the_next_one_after_it(
    serve: Serve, connect: Connect, secure: Secure, authority: Authority, fake: FakeDataplane
) -> None:
    server = serve(connections=Connections(secure(asks=True)))
    device = authority.sign("before")
    client = connect(server, ClientSecurity(TlsFiles(device.cert, device.key, authority.ca)))
    client.infer(REQUEST, TIMEOUT_S)
    fake.hold()
    pending = [client.infer_async(REQUEST, TIMEOUT_S)]
    assert fake.arrived(2, TIMEOUT_S)
    other = authority.sign("after")
    other.key.replace(device.key)
    other.cert.replace(device.cert)
    pending.append(client.infer_async(REQUEST, TIMEOUT_S))
    assert fake.arrived(3, TIMEOUT_S)
    fake.release()
    assert [one.result(TIMEOUT_S).id for one in pending] == ["request-1"] * 2
    assert [call.client for call in fake.calls] == ["before", "before", "after"]
    nobody = connect(server, ClientSecurity(TlsFiles(ca=authority.ca)))
    assert error_of(lambda: nobody.infer(REQUEST, TIMEOUT_S)).kind is RemoteErrorKind.UNAVAILABLE


def write(path: Path, text: str) -> None:
    """As one does it: whole, under another name first."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def test_a_token_is_sent_and_the_next_one_after_it(
    serve: Serve, connect: Connect, secure: Secure, authority: Authority, fake: FakeDataplane, tmp_path: Path
) -> None:
    known = tmp_path / "tokens.yaml"
    entries = [
        f"  - {{name: {name}, sha256: {hashlib.sha256(name.encode() * 8).hexdigest()}}}" for name in ("first", "second")
    ]
    known.write_text("version: 1\ntokens:\n" + "\n".join(entries) + "\n")
    server = serve(connections=Connections(ServerSecurity(secure().tls, known)))
    files = TlsFiles(ca=authority.ca)
    mine = tmp_path / "token"
    write(mine, "first" * 8)
    client = connect(server, ClientSecurity(files, mine))
    client.infer(REQUEST, TIMEOUT_S)
    write(mine, "second" * 8)
    client.infer(REQUEST, TIMEOUT_S)
    assert [call.client for call in fake.calls] == ["first", "second"]
    write(mine, "third" * 8)
    for one in (client, connect(server, ClientSecurity(files))):
        for call in (one.server_metadata, partial(one.infer, REQUEST)):
            error = error_of(partial(call, TIMEOUT_S))
            assert (error.kind, error.retry_after_s) == (RemoteErrorKind.UNAUTHENTICATED, None)
    assert len(fake.calls) == 2


def test_requests_do_not_cross_a_network_in_clear(transport: Transport) -> None:
    with pytest.raises(ConfigError, match="would cross the network in clear"):
        open_client(transport.endpoint("infer.example.com:8001"))

"""Tokens, TLS and client certificates over HTTP, and their replacement while the server runs."""

from __future__ import annotations

import hashlib
import socket
import ssl
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.certificates import Authority
from tests.integration.oip_http.harness import BODY, INFER, PictureModel, Serve, ask, dial, exchange
from upwell.shared.config.security import ServerSecurity, TlsFiles
from upwell.shared.errors import ConfigError
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.server.server import Connections
from upwell.shared.oip.http.server.server import start_http_server


@dataclass(frozen=True)
class Side:
    """One side's files."""

    cert: Path
    key: Path
    ca: Path


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> Side:
    side = Side(tmp_path / "s.pem", tmp_path / "s.key", authority.ca)
    authority.issue(side.cert, side.key, "server")
    return side


def context(files: Side) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(files.ca))


def write_tokens(path: Path, **tokens: str) -> Path:
    lines = [
        f"  - {{name: {name}, sha256: {hashlib.sha256(text.encode()).hexdigest()}}}" for name, text in tokens.items()
    ]
    new = path.with_suffix(".new")
    new.write_text("version: 1\ntokens:\n" + "\n".join(lines) + "\n")
    return new.replace(path)


def test_a_token_is_needed_for_all_but_the_probes(serve: Serve, fake: PictureModel, tmp_path: Path) -> None:
    server = serve(connections=Connections(ServerSecurity(tokens=write_tokens(tmp_path / "t.yaml", camera="secret"))))
    assert [ask(server, "GET", f"/v2/health/{probe}").status for probe in ("live", "ready")] == [200, 200]
    for path in ("/v2", "/v2/models/echo", "/v2/models/echo/ready", "/nowhere"):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}):
            answer = ask(server, "GET", path, headers=headers)
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert ask(server, "POST", INFER, BODY, {"Authorization": "Bearer"}).status == 401
    assert fake.requests == []
    assert ask(server, "POST", INFER, BODY, {"Authorization": "bearer secret"}).status == 200
    assert fake.calls[0].client == "camera"


def test_new_tokens_take_over_and_a_broken_file_does_not(serve: Serve, tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "t.yaml", camera="old")
    server = serve(connections=Connections(ServerSecurity(tokens=path)))

    def status(token: str) -> int:
        return ask(server, "GET", "/v2", headers={"Authorization": f"Bearer {token}"}).status

    assert (status("old"), status("new")) == (200, 401)
    write_tokens(path, camera="new", second="other")
    assert (status("old"), status("new"), status("other")) == (401, 200, 200)
    path.write_text("tokens: [")
    assert status("new") == 200


def test_tls_is_spoken_and_nothing_else(serve: Serve, files: Side) -> None:
    server = serve(connections=Connections(ServerSecurity(tls=TlsFiles(files.cert, files.key))))
    assert ask(server, "POST", INFER, BODY, context=context(files)).status == 200
    big = b" " * 500_000 + BODY
    assert ask(server, "POST", INFER, big, context=context(files)).status == 200
    assert b"HTTP" not in exchange(server, b"GET /v2 HTTP/1.1\r\n\r\n")


def test_a_client_that_does_not_shake_hands_keeps_nobody_waiting(serve: Serve, files: Side) -> None:
    server = serve(connections=Connections(ServerSecurity(tls=TlsFiles(files.cert, files.key))))
    with ExitStack() as stack:
        for index in range(20):
            connection = stack.enter_context(dial(server))
            if index % 2:
                connection.sendall(b"\x16\x03\x01\x02")  # the beginning of a greeting
        assert ask(server, "GET", "/v2", context=context(files)).status == 200


def test_two_requests_in_one_record_of_tls_are_both_answered(serve: Serve, files: Side) -> None:
    server = serve(connections=Connections(ServerSecurity(tls=TlsFiles(files.cert, files.key))))
    with dial(server) as plain, context(files).wrap_socket(plain, server_hostname="localhost") as connection:
        get = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
        connection.sendall(get + get + get.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        with connection.makefile("rb") as file:
            assert file.read().count(b'{"live":true}') == 3


def test_a_client_certificate_is_asked_for_and_its_name_is_known(
    serve: Serve, files: Side, fake: PictureModel, authority: Authority, tmp_path: Path
) -> None:
    server = serve(connections=Connections(ServerSecurity(tls=TlsFiles(files.cert, files.key, files.ca))))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask(server, "GET", "/v2", context=context(files))
    stranger = Authority(tmp_path, "stranger")
    for issuer, name in ((stranger, "stranger"), (authority, "dock-7")):
        issuer.issue(tmp_path / f"{name}.pem", tmp_path / f"{name}.key", name)
    unknown, known = context(files), context(files)
    unknown.load_cert_chain(tmp_path / "stranger.pem", tmp_path / "stranger.key")
    known.load_cert_chain(tmp_path / "dock-7.pem", tmp_path / "dock-7.key")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask(server, "GET", "/v2", context=unknown)
    assert ask(server, "POST", INFER, BODY, context=known).status == 200
    assert [call.client for call in fake.calls] == ["dock-7"]


def test_a_new_certificate_takes_over_and_a_broken_one_does_not(
    serve: Serve, files: Side, authority: Authority
) -> None:
    server = serve(connections=Connections(ServerSecurity(tls=TlsFiles(files.cert, files.key))))

    def name() -> object:
        with dial(server) as plain, context(files).wrap_socket(plain, server_hostname="localhost") as connection:
            subject = (connection.getpeercert() or {})["subject"]
            return subject[0][0][1]

    assert name() == "server"
    authority.issue(files.cert, files.key, "renewed")
    assert name() == "renewed"
    files.key.write_text("broken")
    assert name() == "renewed"


def test_what_could_be_reached_from_outside_unprotected_is_refused(tmp_path: Path, files: Side) -> None:
    tokens = write_tokens(tmp_path / "t.yaml", camera="secret")
    for security in (ServerSecurity(), ServerSecurity(tokens=tokens)):
        with pytest.raises(ConfigError, match="insecure: true"):
            start_http_server(FakeDataplane(), ["0.0.0.0:0"], max_workers=1, connections=Connections(security))


def test_addresses_and_files_that_are_wrong_are_said_before_anything_listens(serve: Serve, files: Side) -> None:
    server = serve()
    with pytest.raises(ConfigError, match="in use"):
        start_http_server(FakeDataplane(), ["127.0.0.1:0", server.addresses[0]], max_workers=1)
    with pytest.raises(ConfigError, match="different addresses"):
        start_http_server(FakeDataplane(), [], max_workers=1)
    files.key.write_text("broken")
    with pytest.raises(ConfigError, match="not a certificate"):
        serve(connections=Connections(ServerSecurity(tls=TlsFiles(files.cert, files.key))))
    with pytest.raises(ConfigError, match="certificate and its key"):
        serve(connections=Connections(ServerSecurity(tls=TlsFiles(ca=files.ca))))


def test_the_port_is_free_again_after_the_stop(serve: Serve) -> None:
    server = serve()
    address = server.addresses[0]
    with dial(server) as idle:
        server.stop(0)
        assert idle.recv(1) == b""  # an end, not a reset
    host, _, port = address.rpartition(":")
    with pytest.raises(ConnectionError), socket.create_connection((host, int(port)), 1):
        pass
    assert ask(serve(address), "GET", "/v2").status == 200

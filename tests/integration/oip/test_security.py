"""TLS, client certificates and tokens over real sockets, and files that change under a running server."""

from __future__ import annotations

import hashlib
import logging
import os
import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tests.faults.certificates import Authority
from tests.integration.oip.harness import TIMEOUT_S, Connect, Serve
from upwell.shared.config.security import ClientSecurity, ServerSecurity, TlsFiles
from upwell.shared.errors import ConfigError
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.fake_dataplane import EXAMPLE, FakeDataplane
from upwell.shared.oip.grpc.client.client import OipClient, RemoteError, RemoteErrorKind
from upwell.shared.oip.grpc.server.server import Connections


@pytest.fixture
def server_tls(tmp_path: Path, authority: Authority) -> TlsFiles:
    files = TlsFiles(cert=tmp_path / "server.pem", key=tmp_path / "server.key")
    issue(authority, files, "first")
    return files


@pytest.fixture
def client_tls(authority: Authority) -> TlsFiles:
    return TlsFiles(ca=authority.ca)


def issue(authority: Authority, files: TlsFiles, name: str) -> None:
    assert files.cert
    assert files.key
    authority.issue(files.cert, files.key, name)


def replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


def write_tokens(path: Path, **tokens: str) -> Path:
    entries = [
        f"  - {{name: {name}, sha256: {hashlib.sha256(token.encode()).hexdigest()}}}" for name, token in tokens.items()
    ]
    replace(path, "version: 1\ntokens:\n" + "\n".join(entries) + "\n")
    return path


def served_name(address: str) -> str:
    """The common name in the certificate that a new connection is shown."""
    host, _, port = address.rpartition(":")
    pem = ssl.get_server_certificate((host, int(port)))
    return str(x509.load_pem_x509_certificate(pem.encode()).subject.rdns[0].rfc4514_string())


def kind_of(client: OipClient) -> RemoteErrorKind:
    with pytest.raises(RemoteError) as error:
        client.ready(TIMEOUT_S)
    return error.value.kind


def test_client_certificates_are_asked_for_and_name_the_client(
    serve: Serve,
    connect: Connect,
    fake: FakeDataplane,
    authority: Authority,
    server_tls: TlsFiles,
    client_tls: TlsFiles,
    tmp_path: Path,
) -> None:
    server = serve(
        connections=Connections(ServerSecurity(tls=TlsFiles(server_tls.cert, server_tls.key, client_tls.ca)))
    )
    device = TlsFiles(cert=tmp_path / "device.pem", key=tmp_path / "device.key", ca=client_tls.ca)
    issue(authority, device, "dock-camera-7")
    connect(server, ClientSecurity(tls=device)).infer(InferRequest("echo", EXAMPLE), TIMEOUT_S)
    assert fake.calls[0].client == "dock-camera-7"
    assert kind_of(connect(server, ClientSecurity(tls=client_tls))) is RemoteErrorKind.UNAVAILABLE


def test_a_new_certificate_takes_over_and_a_broken_one_does_not(
    serve: Serve,
    authority: Authority,
    server_tls: TlsFiles,
    caplog: pytest.LogCaptureFixture,
) -> None:
    address = serve(connections=Connections(ServerSecurity(tls=server_tls))).addresses[0]
    assert served_name(address) == "CN=first"
    issue(authority, server_tls, "second")
    assert served_name(address) == "CN=second"
    assert server_tls.key
    with caplog.at_level(logging.ERROR):
        replace(server_tls.key, "no key")
        assert served_name(address) == "CN=second"
    assert "kept the previous" in caplog.text
    issue(authority, server_tls, "third")
    assert served_name(address) == "CN=third"


def test_broken_files_are_refused_at_the_start(
    serve: Serve, connect: Connect, server_tls: TlsFiles, tmp_path: Path, authority: Authority
) -> None:
    other = TlsFiles(cert=tmp_path / "other.pem", key=tmp_path / "other.key")
    issue(authority, other, "other")
    for tls, message in (
        (TlsFiles(server_tls.cert, other.key), "are not a certificate and key"),
        (TlsFiles(server_tls.cert, None), "a certificate and its key go together"),
        (TlsFiles(server_tls.cert, tmp_path / "none.key"), "none.key: cannot read the key: No such file"),
        (TlsFiles(server_tls.cert, server_tls.key, server_tls.key), "expected one or more CA certificates"),
        (TlsFiles(), "TLS on a server needs a certificate and its key"),
    ):
        with pytest.raises(ConfigError, match=message):
            serve(connections=Connections(ServerSecurity(tls=tls)))
    with pytest.raises(ConfigError, match="cannot read the CA certificates"):
        connect("localhost:1", ClientSecurity(tls=TlsFiles(ca=tmp_path / "none.pem")))
    with pytest.raises(ConfigError, match="cannot read the token"):
        connect("localhost:1", ClientSecurity(token_file=tmp_path / "none"))


def test_every_method_but_the_probes_asks_for_a_token(serve: Serve, connect: Connect, tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path / "tokens.yaml", alice="open sesame")
    checks = [lambda server: health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)]
    server = serve(connections=Connections(ServerSecurity(tokens=tokens)), extra=checks)
    client = connect(server)
    assert client.server_live(TIMEOUT_S)
    with grpc.insecure_channel(server.addresses[0]) as channel:
        health_stub: Any = health_pb2_grpc.HealthStub(channel)
        question = health_pb2.HealthCheckRequest()
        assert health_stub.Check(question, timeout=TIMEOUT_S).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as refused:
            next(health_stub.Watch(question, timeout=TIMEOUT_S))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    for call in (
        lambda: client.ready(TIMEOUT_S),
        lambda: client.ready(TIMEOUT_S, "echo"),
        lambda: client.server_metadata(TIMEOUT_S),
        lambda: client.metadata("echo", TIMEOUT_S),
        lambda: client.infer(InferRequest("echo", {}), TIMEOUT_S),
    ):
        with pytest.raises(RemoteError, match="this server requires a token") as error:
            call()
        assert error.value.kind is RemoteErrorKind.UNAUTHENTICATED


def test_tokens_name_the_client_and_change_without_a_restart(
    serve: Serve, connect: Connect, fake: FakeDataplane, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = write_tokens(tmp_path / "tokens.yaml", alice="token-a", bob="token-b")
    server = serve(connections=Connections(ServerSecurity(tokens=tokens)))
    own = tmp_path / "token"
    own.write_text("token-b\n")
    client = connect(server, ClientSecurity(token_file=own))
    request = InferRequest("echo", EXAMPLE)
    client.infer(request, TIMEOUT_S)
    assert fake.calls[0].client == "bob"

    with caplog.at_level(logging.DEBUG):
        write_tokens(tokens, alice="token-a", bob="token-c")
        assert kind_of(client) is RemoteErrorKind.UNAUTHENTICATED
        replace(own, "token-c")
        assert client.ready(TIMEOUT_S)
        replace(tokens, "version: 1\ntokens: [{name: bob, sha256: token-d}]\n")
        assert client.ready(TIMEOUT_S)
    assert "kept the previous" in caplog.text
    assert not [token for token in ("token-a", "token-b", "token-c", "token-d") if token in caplog.text]


@pytest.mark.parametrize(
    "value", ["", "Bearer", "Bearer ", "Basic token-a", "token-a", "Bearer token-b", "Bearer token-a token-a"]
)
def test_what_is_no_known_token(serve: Serve, tmp_path: Path, value: str) -> None:
    tokens = write_tokens(tmp_path / "tokens.yaml", alice="token-a")
    server = serve(connections=Connections(ServerSecurity(tokens=tokens)))
    with grpc.insecure_channel(server.addresses[0]) as channel:
        ready: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/inference.GRPCInferenceService/ServerReady"
        )
        with pytest.raises(grpc.RpcError) as error:
            ready(b"", timeout=TIMEOUT_S, metadata=(("authorization", value),))
        assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert ready(b"", timeout=TIMEOUT_S, metadata=(("authorization", "bearer token-a"),))

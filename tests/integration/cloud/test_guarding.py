"""TLS, tokens and client certificates on the real process."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.faults.certificates import Authority
from tests.integration.cloud.serving import serve_and_fail, serving
from upwell.shared.config.security import ClientSecurity, TlsFiles
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient, RemoteError, RemoteErrorKind

LIMIT_S = 10.0
REQUEST = InferRequest("linear", {"x": np.ones((1, 8), np.float32)})
TOKEN = "a-token-for-tests"  # noqa: S105  it is one


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Path:
    """`ca.pem`, `server.pem` and `.key`, `client.pem` and `.key`, `tokens.yaml`, `token` and `wrong`."""
    folder = tmp_path_factory.mktemp("guarding")
    shutil.copy(authority.ca, folder / "ca.pem")
    for name in ("server", "client"):
        authority.issue(folder / f"{name}.pem", folder / f"{name}.key", name)
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    (folder / "tokens.yaml").write_text(f"version: 1\ntokens: [{{name: tester, sha256: {digest}}}]\n")
    (folder / "token").write_text(TOKEN)
    (folder / "wrong").write_text("another-token")
    return folder


def ask(address: str, security: ClientSecurity) -> None:
    client = OipClient(address, security)
    try:
        client.infer(REQUEST, LIMIT_S)
    finally:
        client.close()


@pytest.fixture(scope="module")
def guarded(files: Path, repository: Path) -> Iterator[str]:
    """A service with TLS and tokens, by its configuration file."""
    (files / "cloud.yaml").write_text(
        f"version: 1\n"
        f"serve: {{listen: ['127.0.0.1:1'], models: {repository}, tls: {{cert: server.pem, key: server.key}}, "
        f"tokens: tokens.yaml}}\n"
    )
    with serving("-c", files / "cloud.yaml", "--listen", "127.0.0.1:0") as running:
        yield running.address


def test_a_known_token_over_tls_is_let_in(guarded: str, files: Path) -> None:
    ask(guarded, ClientSecurity(TlsFiles(ca=files / "ca.pem"), files / "token"))


@pytest.mark.parametrize("token", [None, "wrong"])
def test_no_token_and_a_wrong_one_are_refused(guarded: str, files: Path, token: str | None) -> None:
    with pytest.raises(RemoteError) as caught:
        ask(guarded, ClientSecurity(TlsFiles(ca=files / "ca.pem"), files / token if token else None))
    assert caught.value.kind is RemoteErrorKind.UNAUTHENTICATED


def test_without_tls_or_trust_nothing_gets_through(guarded: str, files: Path, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger").ca
    expected = {None: RemoteErrorKind.UNAVAILABLE, TlsFiles(ca=stranger): RemoteErrorKind.CERTIFICATE}
    for tls, kind in expected.items():
        with pytest.raises(RemoteError) as caught:
            ask(guarded, ClientSecurity(tls, files / "token"))
        assert caught.value.kind is kind


def test_a_probe_needs_no_token(guarded: str, files: Path) -> None:
    credentials = grpc.ssl_channel_credentials((files / "ca.pem").read_bytes())
    with grpc.secure_channel(guarded, credentials) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        answer = health.Check(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_client_certificates_by_flags(files: Path, repository: Path) -> None:
    tls = ("--tls-cert", files / "server.pem", "--tls-key", files / "server.key", "--client-ca", files / "ca.pem")
    with serving("--models", repository, *tls, "--listen", "0.0.0.0:0") as running:
        address = running.address.replace("0.0.0.0", "127.0.0.1")  # noqa: S104  what it listens on, not where we go
        own = TlsFiles(files / "client.pem", files / "client.key", files / "ca.pem")
        ask(address, ClientSecurity(own))
        with pytest.raises(RemoteError) as caught:
            ask(address, ClientSecurity(TlsFiles(ca=files / "ca.pem")))
        assert caught.value.kind is RemoteErrorKind.UNAVAILABLE


def test_an_open_address_without_protection_is_refused_before_anything_loads(repository: Path) -> None:
    code, said = serve_and_fail("--models", repository / "missing", "--listen", "0.0.0.0:0")
    assert code == 2
    assert "0.0.0.0:0 can be reached from outside this machine" in said


def test_insecure_is_believed(repository: Path) -> None:
    with serving("--models", repository, "--listen", "0.0.0.0:0", "--insecure") as running:
        ask(running.address.replace("0.0.0.0", "127.0.0.1"), ClientSecurity())  # noqa: S104  as above

"""Permissions and limits of tokens and certificates on the real process, over gRPC and HTTP alike."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.faults.certificates import Authority
from tests.integration.cloud.serving import serve_and_fail, serving
from upwell.rpc.oip.v2 import model_repository_pb2 as repository_pb2
from upwell.rpc.oip.v2 import model_statistics_pb2 as statistics_pb2
from upwell.rpc.oip.v2 import model_stream_pb2 as stream_pb2
from upwell.shared.config.security import ClientSecurity, TlsFiles
from upwell.shared.oip.codec import converters
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient, RemoteError, RemoteErrorKind

LIMIT_S = 10.0
X = np.ones((1, 8), np.float32)
BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8], "data": [1] * 8}]}).encode()
SERVING = health_pb2.HealthCheckResponse.SERVING

TOKENS = {
    "all": "",
    "linear-only": ", models: [lin*]",
    "operator": ", models: [slow], control: true",
    "chief": ", control: true",
    "slow-paced": ", limits: {rate: 3/day}",
    "streaming": ", limits: {rate: 2/day}",
    "small": ", limits: {bytes: 40B/day}",
}


def write_tokens(path: Path, entries: dict[str, str], clients: str = "[]") -> None:
    lines = [
        f"  - {{name: {name}, sha256: {hashlib.sha256(name.encode()).hexdigest()}{more}}}\n"
        for name, more in entries.items()
    ]
    new = path.with_suffix(".new")
    new.write_text("version: 1\ntokens:\n" + "".join(lines) + f"clients: {clients}\n")
    os.replace(new, path)


@dataclass(frozen=True)
class Guarded:
    """A service where each token is its own name, and the folder of its files."""

    folder: Path
    grpc: str
    http: str

    def client(self, token: str | None, certificate: str | None = None) -> OipClient:
        return OipClient(self.grpc, security(self.folder, token, certificate))

    def get(self, path: str, token: str | None, body: bytes | None = None, certificate: str | None = None) -> int:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        context = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        shown = certificate or "nobody"
        context.load_cert_chain(self.folder / f"{shown}.pem", self.folder / f"{shown}.key")
        with closing(http.client.HTTPSConnection(self.http, timeout=LIMIT_S, context=context)) as connection:
            connection.request("GET" if body is None else "POST", path, body, headers)
            return connection.getresponse().status


def security(folder: Path, token: str | None, certificate: str | None) -> ClientSecurity:
    shown = certificate or "nobody"
    tls = TlsFiles(folder / f"{shown}.pem", folder / f"{shown}.key", folder / "ca.pem")
    if token is None:
        return ClientSecurity(tls)
    own = folder / f"token-{token}"
    own.write_text(token)
    return ClientSecurity(tls, own)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, repository: Path, authority: Authority) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("permissions")
    shutil.copy(authority.ca, folder / "ca.pem")
    for name in ("server", "camera-1", "camera-2", "door", "nobody"):
        authority.issue(folder / f"{name}.pem", folder / f"{name}.key", name)
    clients = "[{name: camera-1, models: [slow]}, {name: 'camera-*', limits: {rate: 2/day}}]"
    write_tokens(folder / "tokens.yaml", TOKENS, clients)
    (folder / "cloud.yaml").write_text(
        f"version: 1\nserve: {{listen: ['127.0.0.1:0'], listen_http: ['127.0.0.1:0'], models: {repository}, "
        "tokens: tokens.yaml, tls: {cert: server.pem, key: server.key, client_ca: ca.pem}, "
        "repository: {control: true}}\n"
    )
    with serving("-c", folder / "cloud.yaml") as running:
        web = next(line for line in running.lines if line.startswith("HTTP on ")).removeprefix("HTTP on ").strip()
        yield Guarded(folder, running.address, web)


def kind(call: Callable[[], object]) -> RemoteErrorKind | None:
    try:
        call()
    except RemoteError as error:
        return error.kind
    return None


def infer(client: OipClient, model: str = "linear") -> None:
    client.infer(InferRequest(model, {"x": X}), LIMIT_S)


def test_a_token_may_use_the_models_that_its_entry_names(guarded: Guarded) -> None:
    denied = RemoteErrorKind.PERMISSION_DENIED
    with closing(guarded.client("linear-only")) as client:
        assert kind(lambda: infer(client)) is None
        assert client.metadata("linear", LIMIT_S).name == "linear"
        assert client.ready(LIMIT_S, "linear")
        for model in ("slow", "no-such-model"):
            assert kind(partial(infer, client, model)) is denied
            assert kind(partial(client.metadata, model, LIMIT_S)) is denied
            assert kind(partial(client.ready, LIMIT_S, model)) is denied
        with pytest.raises(RemoteError) as caught:
            client.metadata("linear", LIMIT_S, "9")
        assert caught.value.kind is RemoteErrorKind.NOT_FOUND
        assert "slow" not in str(caught.value)
    assert guarded.get("/v2/models/linear/infer", "linear-only", BODY) == 200
    assert [guarded.get(f"/v2/models/{one}", "linear-only") for one in ("linear", "slow", "none")] == [200, 403, 403]
    assert guarded.get("/v2/models/slow/infer", "linear-only", BODY) == 403
    assert guarded.get("/v2/models/slow", "all") == 200  # on another connection; the former caller has left nothing


def test_a_certificate_that_is_listed_needs_no_token(guarded: Guarded) -> None:
    with closing(guarded.client(None, "camera-1")) as client:
        assert kind(lambda: infer(client)) is RemoteErrorKind.PERMISSION_DENIED
        assert client.ready(LIMIT_S, "slow")
    with closing(guarded.client(None, "door")) as client:
        assert kind(lambda: infer(client)) is RemoteErrorKind.UNAUTHENTICATED
    with closing(guarded.client("wrong", "camera-1")) as client:
        assert kind(lambda: client.ready(LIMIT_S)) is RemoteErrorKind.UNAUTHENTICATED
    with closing(guarded.client("all", "door")) as client:
        infer(client)
    assert guarded.get("/v2/models/slow", None, certificate="camera-1") == 200
    assert guarded.get("/v2/models/linear", None, certificate="camera-1") == 403
    assert guarded.get("/v2/models/linear", None, certificate="door") == 401
    assert guarded.get("/v2/models/linear", "wrong", certificate="camera-1") == 401


def test_a_rate_counts_over_grpc_and_http_together(guarded: Guarded) -> None:
    with closing(guarded.client("slow-paced")) as client:
        infer(client)
        assert guarded.get("/v2/models/linear/infer", "slow-paced", BODY) == 200
        infer(client)
        with pytest.raises(RemoteError, match="its limit of requests") as caught:
            infer(client)
        assert caught.value.kind is RemoteErrorKind.RESOURCE_EXHAUSTED
        assert guarded.get("/v2/models/linear/infer", "slow-paced", BODY) == 429
        assert client.ready(LIMIT_S, "linear")  # what costs nothing is not counted
    with closing(guarded.client("all")) as client:
        infer(client)


def test_bytes_are_limited(guarded: Guarded) -> None:
    with closing(guarded.client("small")) as client:
        infer(client)  # 32 bytes there, and more back
        with pytest.raises(RemoteError, match="its limit of bytes"):
            infer(client)


def test_a_glob_gives_each_certificate_limits_of_its_own(guarded: Guarded) -> None:
    with closing(guarded.client(None, "camera-2")) as client:
        infer(client)
        infer(client)
        assert kind(lambda: infer(client)) is RemoteErrorKind.RESOURCE_EXHAUSTED


def method(channel: grpc.Channel, name: str) -> Callable[..., bytes]:
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
    return call


def channel(guarded: Guarded) -> grpc.Channel:
    own = [(guarded.folder / name).read_bytes() for name in ("ca.pem", "nobody.key", "nobody.pem")]
    return grpc.secure_channel(guarded.grpc, grpc.ssl_channel_credentials(*own))


def test_a_stream_has_the_permissions_and_limits_of_its_caller(guarded: Guarded) -> None:
    def answers(token: str, *models: str) -> list[str]:
        requests = [converters.serialize_infer_request(InferRequest(model, {"x": X})) for model in models]
        call: grpc.StreamStreamMultiCallable[bytes, bytes] = link.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer"
        )
        said = call(iter(requests), timeout=LIMIT_S, metadata=(("authorization", f"Bearer {token}"),))
        return [stream_pb2.ModelStreamInferResponse.FromString(one).error_message for one in said]

    with channel(guarded) as link:
        first, second, third = answers("linear-only", "linear", "slow", "none")
        assert (first, second) == ("", "this caller may not use model 'slow'")
        assert third == "this caller may not use model 'none'"
        assert [bool(one) for one in answers("streaming", *["linear"] * 4)] == [False, False, True, True]


def test_loading_needs_control_and_the_model(guarded: Guarded) -> None:
    def load(token: str, model: str) -> grpc.StatusCode | None:
        request = repository_pb2.RepositoryModelLoadRequest(model_name=model).SerializeToString()
        try:
            method(link, "RepositoryModelLoad")(
                request, timeout=LIMIT_S, metadata=[("authorization", f"Bearer {token}")]
            )
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
        return None

    with channel(guarded) as link:
        denied = grpc.StatusCode.PERMISSION_DENIED
        assert [load("all", "slow"), load("linear-only", "linear"), load("operator", "linear")] == [denied] * 3
        assert [load("operator", "slow"), load("chief", "slow")] == [None, None]
        assert load("chief", "none") is grpc.StatusCode.NOT_FOUND

        def seen(token: str) -> set[str]:
            data = method(link, "RepositoryIndex")(
                b"", timeout=LIMIT_S, metadata=[("authorization", f"Bearer {token}")]
            )
            return {one.name for one in repository_pb2.RepositoryIndexResponse.FromString(data).models}

        assert seen("linear-only") == {"linear"}
        assert seen("all") == {"linear", "slow", "broken"}


def test_configuration_and_statistics_are_of_models_that_the_caller_may_use(guarded: Guarded) -> None:
    with channel(guarded) as link:

        def told(token: str) -> set[str]:
            data = method(link, "ModelStatistics")(
                b"", timeout=LIMIT_S, metadata=[("authorization", f"Bearer {token}")]
            )
            return {one.name for one in statistics_pb2.ModelStatisticsResponse.FromString(data).model_stats}

        assert told("linear-only") == {"linear"}
        assert told("all") == {"linear", "slow"}
    answers = [guarded.get(f"/v2/models/{model}/{what}", "linear-only") for model in ("linear", "slow", "none")
               for what in ("config", "stats")]  # fmt: skip
    assert answers == [200, 200, 403, 403, 403, 403]
    assert guarded.get("/v2/models/stats", None) == 401
    assert guarded.get("/v2/repository/models/slow/load", "all", b"{}") == 403
    assert guarded.get("/v2/repository/models/slow/load", "operator", b"{}") == 200


def test_health_tells_no_names_to_who_may_not_know_them(guarded: Guarded) -> None:
    with channel(guarded) as link:
        stub: Any = health_pb2_grpc.HealthStub(link)

        def health(model: str, token: str | None = None) -> object:
            metadata = [("authorization", f"Bearer {token}")] if token else None
            try:
                question = health_pb2.HealthCheckRequest(service=model)
                return stub.Check(question, timeout=LIMIT_S, metadata=metadata).status
            except grpc.RpcError as error:
                return error.code()

        unknown = grpc.StatusCode.NOT_FOUND
        assert [health(""), health("inference.GRPCInferenceService")] == [SERVING] * 2
        assert [health("linear"), health("slow"), health("none")] == [unknown] * 3
        assert [health("linear", "linear-only"), health("slow", "linear-only")] == [SERVING, unknown]
        assert health("slow", "all") == SERVING


def test_permissions_change_with_the_file(guarded: Guarded) -> None:
    path = guarded.folder / "tokens.yaml"
    before = path.read_text()
    with closing(guarded.client("all")) as client:
        infer(client)
        write_tokens(path, {**TOKENS, "all": ", models: [slow]"})
        assert kind(lambda: infer(client)) is RemoteErrorKind.PERMISSION_DENIED
        path.write_text(before)
        until = time.monotonic() + LIMIT_S
        while kind(lambda: infer(client)) is not None:
            assert time.monotonic() < until


def test_without_tokens_every_address_has_the_limits(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "cloud.yaml").write_text(
        f"version: 1\nserve: {{listen: ['127.0.0.1:0'], models: {repository}, limits: {{rate: 1/day, burst: 2}}}}\n"
    )
    with serving("-c", tmp_path / "cloud.yaml") as running:
        with closing(OipClient(running.address)) as client:
            infer(client)
        with closing(OipClient(running.address)) as client:
            infer(client)
            assert kind(lambda: infer(client)) is RemoteErrorKind.RESOURCE_EXHAUSTED


@pytest.mark.slow
def test_certificates_without_a_client_ca_are_a_mistake(repository: Path, tmp_path: Path) -> None:
    write_tokens(tmp_path / "tokens.yaml", {"a": ""}, "[{name: camera}]")
    code, said = serve_and_fail("--models", repository, "--listen", "127.0.0.1:0", "--tokens", tmp_path / "tokens.yaml")
    assert code == 2
    assert "only if the server's TLS has a client CA" in said

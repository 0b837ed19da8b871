"""The contract of a dataplane, through a real HTTP server and a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.contract.dataplane import TIMEOUT_S, ContractSubject, DataplaneContract
from tests.contract.oip_http.http_client import HttpClient
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind
from upwell.shared.oip.http.server.server import RunningHttpServer, start_http_server
from upwell.shared.tensors import DTYPES


class OverHttp(DataplaneContract):
    binary: bool

    @pytest.fixture
    def subject(self) -> ContractSubject:
        inputs = {name.lower(): np.ones((2, 3)).astype(dtype) for name, dtype in DTYPES.items()}
        inputs["bytes"] = np.array([[b"", b"a", b"\0"], [b"\xff" * 300, b"d", b"e"]], dtype=np.object_)
        return ContractSubject(FakeDataplane(), "echo", inputs, misshapen=None)

    @pytest.fixture
    def server(self, subject: ContractSubject) -> Iterator[Any]:
        server = start_http_server(subject.dataplane, ["127.0.0.1:0"], max_workers=16)
        yield server
        server.stop(grace_s=0)

    @pytest.fixture
    def client(self, server: Any) -> Any:
        return HttpClient(server.addresses[0], binary=self.binary)

    def test_an_unreadable_message_is_invalid_and_harms_nobody(
        self, server: Any, client: Any, subject: ContractSubject
    ) -> None:
        assert isinstance(server, RunningHttpServer)
        with pytest.raises(RemoteError) as error:
            client.call("POST", f"/v2/models/{subject.model}/infer", TIMEOUT_S, b'{"inputs": [')
        assert error.value.kind is RemoteErrorKind.INVALID_ARGUMENT
        assert client.infer(InferRequest(subject.model, subject.inputs), TIMEOUT_S).outputs


class TestBinaryOverHttp(OverHttp):
    binary = True


class TestJsonOverHttp(OverHttp):
    binary = False

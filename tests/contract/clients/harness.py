"""The two transports, side by side: how a server of each is started, reached, and made to answer what it should not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import grpc
import pytest

from tests.faults.raw_http import OK, scripted
from tests.faults.raw_servers import RawServer
from upwell.rpc.oip.v2 import open_inference_grpc_pb2 as pb
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.fake_dataplane import EXAMPLE
from upwell.shared.oip.grpc.client.client import RemoteError
from upwell.shared.oip.grpc.server.server import RunningServer, start_server
from upwell.shared.oip.grpc.server.servicer import METHODS, SERVICE
from upwell.shared.oip.http.server.server import RunningHttpServer, start_http_server
from upwell.shared.oip.open_client import Client

TIMEOUT_S = 10.0
"""For calls that should end long before."""

REQUEST = InferRequest("echo", EXAMPLE, id="request-1")

Running: TypeAlias = RunningServer | RunningHttpServer
Serve: TypeAlias = Callable[..., Running]
Connect: TypeAlias = Callable[..., Client]


class Output(NamedTuple):
    """One output of an answer as it is written, which need not be one that can be."""

    name: str
    datatype: str
    shape: Sequence[int]
    raw: bytes


@dataclass(frozen=True)
class Transport:
    """One of the two. `scheme` stands before an address, `secure` where it is reached over TLS."""

    name: str
    start: Callable[..., Running]
    scheme: str
    secure: str
    answer: Callable[[Sequence[Output]], bytes]
    model: Callable[[str, Sequence[int]], bytes]
    replying: Callable[[bytes], Any]

    def endpoint(self, address: str, *, is_secure: bool = False) -> str:
        """What a client is given to reach that address."""
        return f"{self.secure if is_secure else self.scheme}{address}"


def _grpc_answer(outputs: Sequence[Output]) -> bytes:
    message = pb.ModelInferResponse(model_name="echo")
    for output in outputs:
        message.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
        message.raw_output_contents.append(output.raw)
    return message.SerializeToString()


def _grpc_model(datatype: str, shape: Sequence[int]) -> bytes:
    message = pb.ModelMetadataResponse(name="echo", versions=["1"])
    message.inputs.add(name="x", datatype=datatype, shape=shape)
    return message.SerializeToString()


@contextmanager
def _grpc_replying(body: bytes) -> Iterator[str]:
    """A server whose every method answers with that message; its address."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(lambda _, __: body)
    handlers = dict.fromkeys((*METHODS, "ModelConfig"), handler)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def _http_answer(outputs: Sequence[Output]) -> bytes:
    written = [
        {"name": one.name, "datatype": one.datatype, "shape": list(one.shape),
         "parameters": {"binary_data_size": len(one.raw)}}
        for one in outputs
    ]  # fmt: skip
    head = json.dumps({"model_name": "echo", "outputs": written}).encode()
    size = f"Inference-Header-Content-Length: {len(head)}\r\n".encode()
    return _whole(b"".join([head, *(one.raw for one in outputs)]), size)


def _http_model(datatype: str, shape: Sequence[int]) -> bytes:
    tensor = {"name": "x", "datatype": datatype, "shape": list(shape)}
    return _whole(json.dumps({"name": "echo", "versions": ["1"], "inputs": [tensor], "outputs": []}).encode())


def _whole(body: bytes, headers: bytes = b"") -> bytes:
    return OK + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


@contextmanager
def _http_replying(data: bytes) -> Iterator[str]:
    with RawServer(scripted(data)) as server:
        yield server.address


TRANSPORTS = (
    Transport("grpc", start_server, "", "", _grpc_answer, _grpc_model, _grpc_replying),
    Transport("http", start_http_server, "http://", "https://", _http_answer, _http_model, _http_replying),
)


def error_of(call: Callable[[], object]) -> RemoteError:
    """The error that the call ends with."""
    with pytest.raises(RemoteError) as error:
        call()
    return error.value

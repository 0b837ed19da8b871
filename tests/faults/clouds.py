"""A cloud that misbehaves: a real gRPC server that answers as it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from dataclasses import replace
from typing import TypeAlias

import grpc
import numpy as np

from tests.faults.oracles import cloud_scores
from upwell.shared.oip.codec import converters
from upwell.shared.oip.dataplane import InferRequest, InferResponse, Parameter
from upwell.shared.tensors import Array

Behaviour: TypeAlias = Callable[[InferRequest, grpc.ServicerContext], bytes]
"""What the cloud does with a request: the serialized answer, or an abort."""

DIGEST = "sha256:of-the-large-model"


def true_answer(request: InferRequest) -> InferResponse:
    """What the large model says, as the service would put it."""
    scores = cloud_scores(request.inputs["image"])
    facts: dict[str, Parameter] = {
        "upwell.cloud_queue_ms": 0.0,
        "upwell.cloud_compute_ms": 0.1,
        "upwell.cloud_digest": DIGEST,
    }
    return InferResponse(request.model, {"scores": scores}, "1", request.id, facts)


def good(request: InferRequest, _: grpc.ServicerContext) -> bytes:
    """Answer rightly."""
    return converters.serialize_infer_response(true_answer(request))


def status(code: grpc.StatusCode) -> Behaviour:
    """Answer with an error."""

    def answer(_: InferRequest, context: grpc.ServicerContext) -> bytes:
        context.abort(code, "as the test wants it")

    return answer


def junk(data: bytes) -> Behaviour:
    """Answer with these bytes where a message should be."""
    return lambda *_: data


def clipped(keep: float) -> Behaviour:
    """Answer with the first part of the right message only."""

    def answer(request: InferRequest, context: grpc.ServicerContext) -> bytes:
        data = good(request, context)
        return data[: int(len(data) * keep)]

    return answer


def tampered(change: Callable[[Array], dict[str, Array]]) -> Behaviour:
    """Answer with outputs made from the right scores."""

    def answer(request: InferRequest, _: grpc.ServicerContext) -> bytes:
        response = true_answer(request)
        return converters.serialize_infer_response(replace(response, outputs=change(response.outputs["scores"])))

    return answer


def one_bad(value: float) -> Behaviour:
    """Answer with one score replaced."""

    def change(scores: Array) -> dict[str, Array]:
        scores[-1, 3] = value
        return {"scores": scores}

    return tampered(change)


def slow(delay_s: float) -> Behaviour:
    """Answer rightly, late; sooner where the caller leaves."""

    def answer(request: InferRequest, context: grpc.ServicerContext) -> bytes:
        left = threading.Event()
        context.add_callback(left.set)
        left.wait(delay_s)
        return good(request, context)

    return answer


silent = slow(60.0)
"""Take the request and never answer."""

GARBAGE: dict[str, Behaviour] = {
    "no protobuf": junk(b"\xff" * 40),
    "text": junk(b"<html>502 Bad Gateway</html>"),
    "empty message": junk(b""),
    "clipped message": clipped(0.8),
    "wrong name": tampered(lambda scores: {"score": scores}),
    "no outputs": tampered(lambda _: {}),
    "too few classes": tampered(lambda scores: {"scores": scores[:, :9]}),
    "flat": tampered(lambda scores: {"scores": scores.reshape(-1)}),
    "float64": tampered(lambda scores: {"scores": scores.astype(np.float64)}),
    "int32": tampered(lambda scores: {"scores": scores.astype(np.int32)}),
    "strings": tampered(lambda scores: {"scores": np.full(scores.shape, b"0.1", dtype=np.object_)}),
    "one row more": tampered(lambda scores: {"scores": np.concatenate([scores, scores[:1]])}),
    "no rows": tampered(lambda scores: {"scores": scores[:0]}),
    "nan": one_bad(np.nan),
    "infinity": one_bad(np.inf),
}
"""Answers that gRPC delivers and nobody can use."""


class ScriptedCloud:
    """A server of the protocol whose `behaviour` may be changed between calls; it stops and comes back on one port."""

    def __init__(self, credentials: grpc.ServerCredentials | None = None, host: str = "127.0.0.1") -> None:
        self.behaviour: Behaviour = good
        self.host = host
        self.requests: list[InferRequest] = []
        self.headers: list[str] = []
        self._credentials = credentials
        self._server: grpc.Server | None = None
        self.port = 0
        self.start()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{self.host}:{self.port}"

    def endpoint(self, address: str) -> str:
        """How an agent writes this cloud, reached at `address`."""
        return address

    def start(self) -> None:
        """Listen, on the former port if there was one."""
        server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers((_Handlers(self._answer),))
        if self._credentials is None:
            self.port = server.add_insecure_port(self.address)
        else:
            self.port = server.add_secure_port(self.address, self._credentials)
        server.start()
        self._server = server

    def stop(self) -> None:
        """Vanish: connections end, calls under way are dropped."""
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None

    def __enter__(self) -> ScriptedCloud:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _answer(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        request = converters.parse_infer_request(data)
        self.requests.append(request)
        self.headers.append(str(context.invocation_metadata()))
        return self.behaviour(request, context)


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, answer: Callable[[bytes, grpc.ServicerContext], bytes]) -> None:
        self._handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(answer)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._handler if details.method.endswith("/ModelInfer") else None

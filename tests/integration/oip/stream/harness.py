"""One stream to a server, and its messages."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import grpc
import pytest

from tests.integration.oip.harness import TIMEOUT_S
from upwell.rpc.oip.v2 import model_stream_pb2 as stream_pb
from upwell.rpc.oip.v2 import open_inference_grpc_pb2 as pb
from upwell.shared.oip.grpc.server.model_stream import METHOD
from upwell.shared.oip.grpc.server.open_streams import Streams
from upwell.shared.oip.grpc.server.servicer import SERVICE

Limited: TypeAlias = Callable[..., AbstractContextManager[tuple[grpc.Channel, str, Streams]]]

LARGE = 3 << 20


def message(name: str, elements: int = 1, model: str = "echo", **parameters: Any) -> bytes:
    request = pb.ModelInferRequest(model_name=model, id=name)
    request.inputs.add(name="uint8", datatype="UINT8", shape=[elements])
    request.raw_input_contents.append(b"\7" * elements)
    for key, value in parameters.items():
        setattr(request.parameters[key], f"{'bool' if isinstance(value, bool) else 'int64'}_param", value)
    return request.SerializeToString()


def read(data: bytes) -> stream_pb.ModelStreamInferResponse:
    return stream_pb.ModelStreamInferResponse.FromString(data)


class Open:
    """One stream to a server. `put(None)` says that no more requests will come."""

    def __init__(self, channel: grpc.Channel, **options: Any) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        method: Any = channel.stream_stream(f"/{SERVICE}/{METHOD}")
        self.call = method(iter(self._requests.get, None), **{"timeout": 4 * TIMEOUT_S, **options})

    def put(self, data: bytes | None) -> None:
        self._requests.put(data)

    def answer(self) -> stream_pb.ModelStreamInferResponse:
        return read(next(self.call))

    def good(self) -> str:
        """The id of the next answer, which is no error."""
        answer = self.answer()
        assert answer.error_message == ""
        return answer.infer_response.id

    def ends_with(self, code: grpc.StatusCode) -> str:
        """Read the rest, of which there is none, and check how it ends."""
        with pytest.raises(grpc.RpcError):
            next(self.call)
        assert self.call.code() is code
        return str(self.call.details())


def soon(is_so: Callable[[], bool]) -> None:
    """Wait until it is so."""
    until_s = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.01)

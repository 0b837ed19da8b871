"""The results as a gRPC stream, `upwell.rpc.agent.v1.AgentService`, on the agent's own server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import NoReturn

import grpc
from google.protobuf.message import DecodeError

from upwell.edge.spool.delivering import BATCH_BYTES
from upwell.edge.spool.item import SpoolResult, SpoolUnavailable
from upwell.edge.spool.spool import Spool
from upwell.rpc.agent.v1 import agent_pb2 as pb
from upwell.shared.oip.callers import may_use

SERVICE = "upwell.rpc.agent.v1.AgentService"

MAX_STREAMS = 4
"""Streams at once. Each holds a thread of the server, so that many more workers belong to it."""

IDLE_S = 900.0
"""A stream that has had nothing to say for so long ends."""

_LARGEST_SEQUENCE = 2**63 - 1
_KINDS = {"spool": pb.KIND_SPOOL, "audit": pb.KIND_AUDIT}


def add_agent_service(server: grpc.Server, spool: Spool, *, idle_s: float = IDLE_S) -> None:
    """Serve the spool's results on `server`, before it is started. Streams end when the spool's news are closed."""
    streams = _Streams(spool, idle_s)
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(streams.results)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Results": handler}),))


class _Streams:
    def __init__(self, spool: Spool, idle_s: float) -> None:
        self._spool = spool
        self._idle_s = idle_s
        self._room = threading.BoundedSemaphore(MAX_STREAMS)

    def results(self, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            since = pb.ResultsRequest.FromString(data).since
        except DecodeError:
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the message cannot be read as a ResultsRequest")
        if not self._room.acquire(blocking=False):
            _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} streams of results are open already")
        try:
            context.add_callback(self._spool.news.publish)  # so that a stream whose caller has left notices it
            yield from self._follow(min(since, _LARGEST_SEQUENCE), context)
        except SpoolUnavailable as error:
            if not self._spool.news.is_closed:
                _abort(context, grpc.StatusCode.UNAVAILABLE, str(error))
        finally:
            self._room.release()

    def _follow(self, since: int, context: grpc.ServicerContext) -> Iterator[bytes]:
        news = self._spool.news
        quiet_since_s = time.monotonic()
        while context.is_active() and not news.is_closed:
            seen = news.count
            results = self._spool.results(since, BATCH_BYTES)
            for result in results:
                if may_use(result.model):
                    yield _message(result).SerializeToString()
                since, quiet_since_s = result.sequence, time.monotonic()
            left_s = self._idle_s - (time.monotonic() - quiet_since_s)
            if left_s <= 0:
                return
            if not results:
                news.wait(seen, left_s)


def _message(result: SpoolResult) -> pb.Result:
    return pb.Result(
        sequence=result.sequence,
        spool_id=result.spool_id,
        request_id=result.request_id,
        model=result.model,
        cloud_model=result.cloud_model,
        kind=_KINDS[result.kind],
        tags=result.tags,
        reason=result.reason,
        created_unix_s=result.created_wall_s,
        answered_unix_s=result.answered_wall_s,
        answer=result.answer,
        edge_answer=result.edge_answer,
        edge_answer_digest=result.edge_answer_digest,
    )


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, text: str) -> NoReturn:
    context.abort(code, text)
    raise AssertionError("abort does not return")

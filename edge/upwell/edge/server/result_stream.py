"""The results as a gRPC stream, `upwell.rpc.agent.v1.AgentService`, on the agent's own server."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import NoReturn

import grpc
from google.protobuf.message import DecodeError

from upwell.edge.spool.result_delivery import BATCH_BYTES
from upwell.edge.spool.spool import Spool
from upwell.edge.spool.spooled_request import SpoolResult, SpoolUnavailable
from upwell.rpc.agent.v1 import agent_pb2 as pb
from upwell.shared.errors import Unauthenticated
from upwell.shared.oip.auth.caller import client_key, current_caller, may_read_result, renewed
from upwell.shared.oip.grpc.server.servicer import client_name

SERVICE = "upwell.rpc.agent.v1.AgentService"

MAX_STREAMS, MAX_PER_CLIENT = 16, 4
"""Maximum number of streams in total and per client. Each uses a thread, so the server gets that many more workers."""

MAX_AGE_S = 3600.0
"""Maximum duration of a stream; the client continues with another one."""

IDLE_S = 900.0
"""Idle time after which a stream ends."""

_LARGEST_SEQUENCE = 2**63 - 1
_KINDS = {"spool": pb.KIND_SPOOL, "audit": pb.KIND_AUDIT}


def add_agent_service(server: grpc.Server, spool: Spool, *, idle_s: float = IDLE_S) -> None:
    """Serve the spool's results on `server`, before it is started. Streams end when the spool's news closes."""
    streams = _Streams(spool, idle_s)
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(streams.results)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Results": handler}),))


class _Streams:
    def __init__(self, spool: Spool, idle_s: float) -> None:
        self._spool = spool
        self._idle_s = idle_s
        self._open: Counter[str] = Counter()
        self._lock = threading.Lock()

    def results(self, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            since = pb.ResultsRequest.FromString(data).since
        except DecodeError:
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the message cannot be read as a ResultsRequest")
        client = client_key(client_name(context))
        refusal = self._begin(client)
        if refusal:
            _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, refusal)
        try:
            context.add_callback(self._spool.news.publish)  # so that a stream notices that its caller has left
            yield from self._follow(min(since, _LARGEST_SEQUENCE), context)
        except SpoolUnavailable as error:
            if not self._spool.news.is_closed:
                _abort(context, grpc.StatusCode.UNAVAILABLE, str(error))
        except Unauthenticated as error:
            _abort(context, grpc.StatusCode.UNAUTHENTICATED, str(error))
        finally:
            with self._lock:
                self._open[client] -= 1

    def _begin(self, client: str) -> str:
        """Reserve a stream for this client; returns why there is none, or ""."""
        with self._lock:
            if self._open[client] >= MAX_PER_CLIENT:
                return f"this client already has {MAX_PER_CLIENT} result streams open"
            if self._open.total() >= MAX_STREAMS:
                return f"{MAX_STREAMS} result streams are already open"
            self._open[client] += 1
            self._open += Counter()  # drops clients without streams
        return ""

    def _follow(self, since: int, context: grpc.ServicerContext) -> Iterator[bytes]:
        news, caller = self._spool.news, current_caller()
        began_s = quiet_since_s = time.monotonic()
        while context.is_active() and not news.is_closed:
            seen = news.count
            results = self._spool.results(since, BATCH_BYTES)
            caller = renewed(caller)  # after the wait, since a token may have been removed or restricted meanwhile
            for result in results:
                if may_read_result(caller, result.model, result.owner):
                    yield _message(result).SerializeToString()
                since, quiet_since_s = result.sequence, time.monotonic()
            now_s = time.monotonic()
            left_s = min(quiet_since_s + self._idle_s, began_s + MAX_AGE_S) - now_s
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

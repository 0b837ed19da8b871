"""The routes of the Open Inference Protocol over a `Dataplane`: decode, call, encode.

It does not know which HTTP server reads and writes the bytes.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeAlias
from urllib.parse import unquote

from upwell.shared.errors import InvalidRequest, ModelFailed, Refused, Unavailable, UpwellError
from upwell.shared.oip.auth.bearer_tokens import KnownTokens
from upwell.shared.oip.auth.caller import Caller, calling
from upwell.shared.oip.class_labels import infer_classified
from upwell.shared.oip.dataplane import Call, Dataplane, InferRequest, InferResponse, ModelMetadata, Signal
from upwell.shared.oip.error_statuses import note_error_answer
from upwell.shared.oip.http.body_converters import (
    MAX_JSON_BYTES,
    ReadRequest,
    RequestedOutput,
    parse_infer_request,
    write_infer_response,
    write_model_metadata,
    write_server_metadata,
)
from upwell.shared.oip.http.replies import BINARY, JSON, STATUS_HEADER, Rejected, Reply, error_reply, json_reply
from upwell.shared.oip.http.server.extension_routes import Extensions
from upwell.shared.oip.http.server.request import (
    HEAD_LENGTH_HEADER,
    ID_HEADER,
    PICTURES,
    HttpRequest,
    allowed_origin,
    content_type,
    fact_headers,
    head_bytes,
    input_of,
    is_raw,
    looks_like_json,
    preflight,
    shared_with,
    timeout_s,
    with_tags,
)
from upwell.shared.oip.http.server.request_bodies import (
    Memory,
    Share,
    accepted,
    encoding_of,
    packed,
    too_large,
    unpacked,
)
from upwell.shared.platform.call_threads import yield_permit
from upwell.shared.telemetry.log_context import note_request, request_id

BODIES_IN_MEMORY = 8
"""Number of bodies of maximum size held at once; further ones are refused before they are read."""

LEAST_MEMORY_BYTES = 512 << 20
"""Minimum total memory for bodies, even if the maximum size is small (bytes)."""

_JSON_EXPANSION = 20
"""Memory of parsed JSON relative to its text, for short lists."""

LIVE = ("v2", "health", "live")
READY = ("v2", "health", "ready")
"""With `LIVE`, the routes that probes may call without a token; they reveal nothing about models."""

_LARGE_JSON_BYTES = 256 << 10
"""Size of an answer's JSON from which other calls go on meanwhile (bytes)."""

_SMALLER = "; binary data (`binary_data_output`) takes fewer"

_MAX_TOKEN_CHARACTERS = 4096

_READING = ("GET", "HEAD")
_MAX_ID_CHARACTERS = 200

_log = logging.getLogger(__name__)
_Answer: TypeAlias = Callable[[memoryview, Share], Reply]


@dataclass(frozen=True)
class Pending:
    """A request that can be answered, once its body has been read if it `takes_body`."""

    takes_body: bool
    _answer: _Answer
    _caller: Caller | None
    _origin: str = ""

    def answer(self, body: memoryview, share: Share) -> Reply:
        """Answer the request; `share` holds the memory of its body. Takes as long as the inference does, and raises
        nothing.
        """
        note_request("")  # a thread answers many requests
        try:
            with calling(self._caller):
                reply = self._answer(body, share)
        except Exception as error:  # noqa: BLE001 (the boundary: callers must not see the inside of a bug)
            reply = failure_reply(error)
        return shared_with(self._origin, reply)


def failure_reply(error: Exception) -> Reply:
    """The reply to a request that failed; it is counted, and logged if the server is at fault."""
    reply = error_reply(error)
    note_error_answer(dict(reply.headers).get(STATUS_HEADER, f"HTTP {int(reply.status)}"))
    if reply.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        is_defect = not isinstance(error, ModelFailed)  # a model's text may quote the request
        _log.error(
            "request %r over HTTP failed: %s",
            request_id(),
            type(error).__name__,
            exc_info=error if is_defect else None,
        )
    return reply


@dataclass(frozen=True)
class InferCall:
    """An inference for `client`."""

    model: str
    version: str
    http_request: HttpRequest
    client: str


class Application:
    """Answers HTTP requests from a `Dataplane`. Thread-safe.

    At most `max_workers` inferences run at once, and a further one is refused; `tokens` admits callers (None:
    everybody), `extensions` are the routes beside inference, and `origins` the sites whose pages may call from a
    browser.
    """

    def __init__(
        self,
        dataplane: Dataplane,
        *,
        max_workers: int,
        max_message_bytes: int,
        tokens: KnownTokens | None,
        extensions: Extensions | None = None,
        origins: Collection[str] = (),
    ) -> None:
        self._origins = frozenset(origins)
        self._dataplane = dataplane
        self._extensions = extensions
        self._max_bytes = max_message_bytes
        self._tokens = tokens
        self._most_calls = max_workers
        self.memory = Memory(max(BODIES_IN_MEMORY * max_message_bytes, LEAST_MEMORY_BYTES))
        self._lock = threading.Lock()
        self._calls: set[Signal] = set()
        self._is_over = False

    def begin(self, http_request: HttpRequest) -> Reply | Pending:
        """Judge a request by its head: a reply, or a `Pending` request. Does not block and raises nothing. HEAD is
        answered like GET.
        """
        origin = ""
        try:
            origin = allowed_origin(http_request.headers, self._origins)
            asked = preflight(http_request.method, http_request.headers) if origin else None
            if asked is None:
                pending = self._begin(http_request)
                return dataclasses.replace(pending, _origin=origin) if origin else pending
            return shared_with(origin, asked)
        except Exception as error:  # noqa: BLE001 (as in `Pending.answer`)
            return shared_with(origin, failure_reply(error))

    def cancel_all(self) -> None:
        """Cancel the calls in progress, and accept no others."""
        with self._lock:
            self._is_over = True
            for cancelled in self._calls:
                cancelled.set()

    def _begin(self, http_request: HttpRequest) -> Pending:
        note_request("")
        path = _path(http_request.target)
        client, caller = http_request.client, None
        if self._tokens is not None and path not in (LIVE, READY):
            caller = _caller_for(self._tokens, http_request.headers.get("authorization"), http_request.certificate)
            client = caller.name
        method, answer = self._route(path, http_request, client)
        if http_request.method != method and not (method == "GET" and http_request.method == "HEAD"):
            allowed = ", ".join(_READING) if method == "GET" else method
            raise Rejected(HTTPStatus.METHOD_NOT_ALLOWED, f"this path supports {allowed}", (("Allow", allowed),))
        if method == "POST":  # wrong headers are reported before the body is read
            is_raw(http_request.headers)
            timeout_s(http_request.headers)
            answer = self._compressed(http_request.headers, client, answer)
        return Pending(method == "POST", answer, caller)

    def _route(self, path: tuple[str, ...], http_request: HttpRequest, client: str) -> tuple[str, _Answer]:
        if path == ("v2",):
            return "GET", lambda *_: json_reply(write_server_metadata(self._dataplane.server_metadata()))
        if path == LIVE:
            return "GET", lambda *_: json_reply({"live": True})
        if path == READY:
            return "GET", lambda *_: _ready_reply(self._dataplane.ready())
        extended = self._extended(path, http_request.method, client)
        if extended is not None:
            return extended
        if path[:2] == ("v2", "models") and len(path) > 2:
            model, version, rest = path[2], "", path[3:]
            if len(rest) >= 2 and rest[0] == "versions":
                version, rest = rest[1], rest[2:]
            if rest == ():
                return "GET", lambda *_: json_reply(write_model_metadata(self._dataplane.metadata(model, version)))
            if rest == ("ready",):
                return "GET", lambda *_: self._model_ready(model, version)
            if rest == ("infer",):
                call = InferCall(model, version, http_request, client)
                return "POST", lambda body, share: self._infer(call, body, share)
        raise Rejected(HTTPStatus.NOT_FOUND, "no such path; the protocol's paths begin with /v2")

    def _compressed(self, headers: Mapping[str, str], client: str, answer: _Answer) -> _Answer:
        """`answer` for a request of `client` with a body that may be compressed."""
        encoding, wanted = encoding_of(headers), accepted(headers)
        if not encoding and not wanted:
            return answer

        def answered(body: memoryview, share: Share) -> Reply:
            if encoding:
                with self._dataplane.reading(Call(client=client), len(body)):
                    body = unpacked(encoding, body, self._max_bytes, share)
            return packed(answer(body, share), wanted)

        return answered

    def _extended(self, path: tuple[str, ...], method: str, client: str) -> tuple[str, _Answer] | None:
        if self._extensions is None or path[:1] != ("v2",):
            return None
        found = self._extensions.route(path[1:], method, client)
        if found is None:
            return None
        allowed, answer = found

        def answered(body: memoryview, share: Share) -> Reply:
            share.take(_JSON_EXPANSION * min(len(body), MAX_JSON_BYTES))
            return answer(body)

        return allowed, answered

    def _model_ready(self, model: str, version: str) -> Reply:
        ready = self._dataplane.ready(model, version)
        if not ready:
            # An unknown model is 404 instead of "not ready"; this raises if it is.
            self._dataplane.metadata(model, version)
        return _ready_reply(ready)

    def _infer(self, asked: InferCall, body: memoryview, share: Share) -> Reply:
        http_request, model, version = asked.http_request, asked.model, asked.version
        raw = is_raw(http_request.headers) and not looks_like_json(http_request.headers, body)
        wait_s = timeout_s(http_request.headers)
        metadata = self._dataplane.metadata(model, version) if raw else None
        with self._dataplane.reading(Call(client=asked.client), len(body)):
            if metadata is not None:
                read = _read_raw(asked, body, metadata)
            else:
                end = head_bytes(http_request.headers, len(body))
                share.take(_JSON_EXPANSION * min(end, MAX_JSON_BYTES))
                read = parse_infer_request(model, version, body[:end], body[end:])
        request = dataclasses.replace(
            read.request,
            id=read.request.id or os.urandom(16).hex(),
            parameters=with_tags(read.request.parameters, http_request.headers),
        )
        wait_s = min(wait_s, math.inf if read.timeout_s is None else read.timeout_s)
        with self._call(http_request, http_request.arrived_s + wait_s, asked.client) as call:
            note_request(request.id, asked.client, model, call.traceparent)
            response = infer_classified(self._dataplane, request, call)
        return _infer_reply(response, read.wanted, self._max_bytes, with_facts=raw)

    @contextmanager
    def _call(self, http_request: HttpRequest, deadline_s: float, client: str) -> Iterator[Call]:
        call = Call(deadline_s=deadline_s, client=client, traceparent=http_request.headers.get("traceparent", ""))
        try:
            with self._lock:
                if self._is_over:  # read after the end
                    raise Unavailable("the server has stopped")
                if len(self._calls) >= self._most_calls:
                    raise Refused("too many requests are in progress")
                self._calls.add(call.cancelled)
            with http_request.disconnect.watched(call.cancelled):
                yield call
        finally:
            with self._lock:
                self._calls.discard(call.cancelled)


def _read_raw(asked: InferCall, body: memoryview, metadata: ModelMetadata) -> ReadRequest:
    """The body as the only input of the model with that metadata. Raises `InvalidRequest`."""
    headers = asked.http_request.headers
    inputs = input_of(metadata, body, is_picture=content_type(headers) in PICTURES)
    name = headers.get(ID_HEADER, "")[:_MAX_ID_CHARACTERS]
    # Triton answers a purely binary request in binary; but a picture sent with curl gets JSON.
    wanted = RequestedOutput(HEAD_LENGTH_HEADER in headers, {})
    return ReadRequest(InferRequest(asked.model, inputs, asked.version, id=name), wanted)


def check_size(size_bytes: int, max_bytes: int) -> None:
    """Raise `Rejected` (413) for a body of more than `max_bytes`."""
    if size_bytes > max_bytes:
        raise too_large(f"the body takes {size_bytes} bytes; at most {max_bytes} are read")


def _caller_for(known: KnownTokens, authorization: str | None, certificate: str) -> Caller:
    """The caller with that `Authorization` header (None: without) on a connection whose client certificate has that
    name ("": none). Raises `Rejected` (401).
    """
    if authorization is None:
        found = known.holder_of(certificate)
        if found is None:
            raise _needs_token()
        return found
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > _MAX_TOKEN_CHARACTERS:
        raise _needs_token()
    found = known.caller_of(token.encode("latin-1", "replace"))
    if found is None:
        raise _unauthenticated("the token is not known here")
    return found


def _needs_token() -> Rejected:
    return _unauthenticated("this server requires a token: send the header `Authorization: Bearer <token>`")


def _unauthenticated(text: str) -> Rejected:
    return Rejected(HTTPStatus.UNAUTHORIZED, text, ((STATUS_HEADER, "UNAUTHENTICATED"),))


def _path(target: str) -> tuple[str, ...]:
    """The segments of the path, decoded one by one, so that an encoded slash stays in its segment."""
    path = target.partition("?")[0]
    try:
        return tuple(unquote(segment, errors="strict") for segment in path.strip("/").split("/"))
    except UnicodeDecodeError:
        raise InvalidRequest("the path is not UTF-8 text") from None


def _ready_reply(ready: bool) -> Reply:
    headers = () if ready else (("Retry-After", "1"),)
    return json_reply({"ready": ready}, HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE, headers)


def _infer_reply(response: InferResponse, wanted: RequestedOutput, max_bytes: int, *, with_facts: bool) -> Reply:
    try:
        pieces, raws = write_infer_response(response, wanted)
    except UpwellError as error:
        # The protocol cannot carry what the model made, which is not the caller's fault.
        raise RuntimeError("the answer cannot be written") from error
    size_bytes = sum(map(len, raws))
    if size_bytes > max_bytes:
        raise too_large(f"the answer takes {size_bytes} bytes; at most {max_bytes} are sent")
    head = bytearray()
    for piece in pieces:
        head += piece
        if len(head) > _LARGE_JSON_BYTES:
            yield_permit()
        if size_bytes + len(head) > max_bytes:
            fits = sum(array.nbytes for array in response.outputs.values()) < max_bytes
            smaller = _SMALLER if fits and len(raws) < len(response.outputs) else ""
            raise too_large(f"the answer takes more than {max_bytes} bytes, the most that are sent{smaller}")
    facts = fact_headers(response.parameters) if with_facts else []
    if not raws:
        return Reply(HTTPStatus.OK, (("Content-Type", JSON), *facts), (bytes(head),))
    headers = (("Content-Type", BINARY), ("Inference-Header-Content-Length", str(len(head))), *facts)
    return Reply(HTTPStatus.OK, headers, (bytes(head), *raws))

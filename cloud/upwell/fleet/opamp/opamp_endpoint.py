"""`POST /v1/opamp`: bounds the size of a message before reading it, and refuses with one clear sentence."""

from __future__ import annotations

import asyncio
import logging
import random
import zlib
from collections.abc import Mapping
from http import HTTPStatus

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from upwell.fleet.enrolment.certificate_authority import serial_of_der
from upwell.fleet.errors import DatabaseUnavailable
from upwell.fleet.opamp.opamp_messages import read, write, write_error
from upwell.fleet.opamp.poll_handler import Peer, PollHandler
from upwell.shared.errors import InvalidRequest, NotAllowed, Refused, Unauthenticated, UpwellError
from upwell.shared.opamp import CONTENT_TYPE

BODY_S = 10.0
"""Time limit for receiving a body."""

DISCARDED = 8
"""A body of up to so many times the limit is read to its end before it is refused: closing a connection with unread
bytes resets it, and the sender may then never see the refusal."""

MOST_AT_ONCE, MOST_BODIES = 64, 512
"""Polls in progress, and polls whose bodies are still arriving. Beyond that a device must retry later, since waiting
would only make all of them late.
"""

PEER = "upwell.peer_certificate"
"""The key of a request's scope under which its server puts the client's certificate (DER), or None."""


class TooLarge(InvalidRequest):
    """The message exceeds the limit."""


_STATUSES: Mapping[type[UpwellError], HTTPStatus] = {
    TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Unauthenticated: HTTPStatus.UNAUTHORIZED,
    NotAllowed: HTTPStatus.FORBIDDEN,
    Refused: HTTPStatus.SERVICE_UNAVAILABLE,
    DatabaseUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
}
_PROOF = (
    "expected the device's certificate or, to enrol, `Authorization: Bearer <enrolment token>` with a certificate "
    "signing request"
)
_log = logging.getLogger(__name__)


class OpampEndpoint:
    """Answers polls over HTTP; `max_bytes` bounds a message, packed and unpacked, `poll_s` is the usual pace."""

    def __init__(self, exchange: PollHandler, max_bytes: int, poll_s: float) -> None:
        self._exchange = exchange
        self._max_bytes = max_bytes
        self._poll_s = poll_s
        self._reading = self._working = 0

    async def __call__(self, request: Request) -> Response:
        """One poll."""
        if request.scope.get(PEER) is None and "authorization" not in request.headers:
            return _refusal(Unauthenticated(_PROOF))  # before anything is read
        if self._reading >= MOST_BODIES:
            return _refusal(self._busy())
        self._reading += 1
        try:
            data = await asyncio.wait_for(_body(request, self._max_bytes), BODY_S)
            if self._working >= MOST_AT_ONCE:
                raise self._busy()
            return await self._worked(data, _peer(request))
        except UpwellError as error:
            return _refusal(error)
        except asyncio.TimeoutError:
            return _refusal(InvalidRequest(f"the body did not come within {BODY_S:g} s"))
        except ClientDisconnect:
            return _refusal(InvalidRequest("the connection ended within the body"))
        finally:
            self._reading -= 1

    async def _worked(self, data: bytes, peer: Peer) -> Response:
        self._working += 1
        try:
            return Response(await run_in_threadpool(self._polled, data, peer), media_type=CONTENT_TYPE)
        except UpwellError:
            raise
        except Exception:  # noqa: BLE001 (the boundary of the service)
            _log.exception("a poll failed")
            return Response(
                write_error("internal error", retry_s=0.0), HTTPStatus.INTERNAL_SERVER_ERROR, {}, CONTENT_TYPE
            )
        finally:
            self._working -= 1

    def _busy(self) -> Refused:
        spread = random.uniform(0.25, 1.0)  # noqa: S311  it spreads polls, and is no secret
        return Refused("the service is busy", retry_after_s=spread * self._poll_s)

    def _polled(self, data: bytes, peer: Peer) -> bytes:
        return write(self._exchange.answer(read(data), peer))


def _peer(request: Request) -> Peer:
    certificate = request.scope.get(PEER)
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return Peer(serial_of_der(certificate) if certificate else "", token.strip() if scheme.lower() == "bearer" else "")


async def _body(request: Request, max_bytes: int) -> bytes:
    """The decompressed body. Raises `InvalidRequest`, of which `TooLarge` is one."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != CONTENT_TYPE:
        raise InvalidRequest(f"expected Content-Type: {CONTENT_TYPE}")
    packing = request.headers.get("content-encoding", "identity").strip().lower()
    if packing not in ("identity", "gzip"):
        raise InvalidRequest("expected Content-Encoding: gzip, or none")
    length = request.headers.get("content-length", "0")
    told_bytes = int(length[:19]) if length.isascii() and length.isdigit() else 0
    if told_bytes > DISCARDED * max_bytes:
        raise TooLarge(f"the message has {told_bytes} bytes; expected at most {max_bytes}")
    data, received_bytes = bytearray(), 0
    async for piece in request.stream():
        received_bytes += len(piece)
        if received_bytes > DISCARDED * max_bytes:
            break
        if received_bytes <= max_bytes:
            data += piece
    if max(told_bytes, received_bytes) > max_bytes:
        has = told_bytes or f"more than {max_bytes}"
        raise TooLarge(f"the message has {has} bytes; expected at most {max_bytes}")
    return bytes(data) if packing == "identity" else unpacked(bytes(data), max_bytes)


def unpacked(data: bytes, max_bytes: int) -> bytes:
    """The decompressed gzip data, never more than the limit. Raises `InvalidRequest`, of which `TooLarge` is one."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        found = unpacker.decompress(data, max_bytes + 1)
    except zlib.error:
        raise InvalidRequest("the body is not gzip, though its Content-Encoding says so") from None
    if len(found) > max_bytes:
        raise TooLarge(f"the message has more than {max_bytes} bytes once unpacked")
    if not unpacker.eof or unpacker.unused_data:
        raise InvalidRequest("expected exactly one complete gzip file")
    return found


def _refusal(error: UpwellError) -> Response:
    retry_s = error.retry_after_s or 0.0 if isinstance(error, Refused) else 0.0
    headers = {"Retry-After": str(max(1, round(retry_s)))} if retry_s else {}
    status = _STATUSES.get(type(error), HTTPStatus.BAD_REQUEST)
    return Response(write_error(str(error), retry_s=retry_s), status, headers, CONTENT_TYPE)

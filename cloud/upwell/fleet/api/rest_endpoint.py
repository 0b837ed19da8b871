"""From a table of operations to routes: authentication, authorization, validation; errors as problem+json."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from upwell.fleet.api.operation_table import BASE, PROBLEM, AdmittedCall, Nothing, Operation, Table
from upwell.fleet.errors import Conflict, DatabaseUnavailable, NotFound
from upwell.fleet.opamp import opamp_endpoint
from upwell.fleet.opamp.opamp_endpoint import TooLarge
from upwell.fleet.opamp.poll_handler import FleetState
from upwell.fleet.users import Attempts, Role, User, user_of
from upwell.shared.errors import InvalidRequest, NotAllowed, Refused, Unauthenticated, UpwellError
from upwell.shared.files import parse_json

MAX_BODY_BYTES = 64 << 10

STATUSES: Mapping[type[UpwellError], HTTPStatus] = {
    InvalidRequest: HTTPStatus.BAD_REQUEST,
    TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Unauthenticated: HTTPStatus.UNAUTHORIZED,
    NotAllowed: HTTPStatus.FORBIDDEN,
    NotFound: HTTPStatus.NOT_FOUND,
    Conflict: HTTPStatus.CONFLICT,
    Refused: HTTPStatus.TOO_MANY_REQUESTS,
    DatabaseUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
}
_log = logging.getLogger(__name__)


class UserGate:
    """Admits callers by their token. `attempts` counts wrong tokens by address."""

    def __init__(self, state: FleetState) -> None:
        self._state = state
        self._attempts = Attempts()

    def user(self, request: Request, role: Role) -> User:
        """The caller. Raises `Unauthenticated`, `NotAllowed`, and `Refused` after too many wrong tokens."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated("a token is required: send the header `Authorization: Bearer <token>`")
        user = self.by_token(token.strip(), request.client.host if request.client else "")
        if not user.may(role):
            raise NotAllowed(f"{user.name!r} is a {user.role}; this needs the role {role}")
        return user

    def by_token(self, token: str, address: str) -> User:
        """The user with that token. Raises `Unauthenticated`, and `Refused` after too many wrong ones from the
        address.
        """
        now_s = time.monotonic()
        wait_s = self._attempts.wait_s(address, now_s)
        if wait_s > 0:
            raise Refused("too many wrong tokens from this address", retry_after_s=wait_s)
        with self._state.database.reading() as connection:
            user = user_of(connection, token)
        if user is None:
            self._attempts.failed(address, now_s)
            raise Unauthenticated("the token is not known here")
        return user


def routes(table: Table, state: FleetState, gate: UserGate) -> list[Route]:
    """The routes of these operations."""
    return [Route(BASE + one.path, _Endpoint(one, state, gate).answer, methods=[one.method]) for one in table]


def problem(error: UpwellError) -> Response:
    """An error as problem+json (RFC 9457)."""
    status = STATUSES.get(type(error), HTTPStatus.INTERNAL_SERVER_ERROR)
    retry_s = getattr(error, "retry_after_s", None)
    headers = {"Retry-After": str(max(1, round(retry_s)))} if retry_s else {}
    if status is HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return problem_of(status, str(error), headers)


def problem_of(status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error as problem+json, from its parts."""
    body = {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": detail}
    return JSONResponse(body, status.value, dict(headers or {}), PROBLEM)


class _Endpoint:
    def __init__(self, operation: Operation[Any, Any], state: FleetState, gate: UserGate) -> None:
        self._operation = operation
        self._state = state
        self._gate = gate

    async def answer(self, request: Request) -> Response:
        operation = self._operation
        try:
            user = await run_in_threadpool(self._gate.user, request, operation.role)
            query = _checked(operation.query, _printable(request.query_params), "the parameter", strict=False)
            path = _printable(request.path_params)
            body = await asyncio.wait_for(_body(request, operation.body), opamp_endpoint.BODY_S)
            call: AdmittedCall[Any, Any] = AdmittedCall(user, time.time(), path, body, query, self._state)
            result = await run_in_threadpool(operation.run, call)
        except UpwellError as error:
            return problem(error)
        except asyncio.TimeoutError:
            return problem_of(HTTPStatus.REQUEST_TIMEOUT, f"the body did not come within {opamp_endpoint.BODY_S:g} s")
        except ClientDisconnect:
            return problem_of(HTTPStatus.BAD_REQUEST, "the connection ended within the body")
        except Exception:  # noqa: BLE001 (the boundary of the service)
            _log.exception("%s failed", operation.name)
            return problem_of(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error")
        if result is None:
            return Response(status_code=HTTPStatus.NO_CONTENT)
        return Response(result.model_dump_json(), media_type="application/json")


def _printable(texts: Mapping[str, Any]) -> dict[str, str]:
    """A part of a URL. Raises `InvalidRequest` for control characters, which some databases reject."""
    if not all(str(text).isprintable() for text in texts.values()):
        raise InvalidRequest("the URL contains unprintable characters")
    return dict(texts)


async def _body(request: Request, model: type[BaseModel]) -> BaseModel:
    if model is Nothing:
        return Nothing()
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_BODY_BYTES:
            raise TooLarge(f"the body has more than {MAX_BODY_BYTES} bytes")
    try:
        found = parse_json(bytes(data))
    except ValueError:
        raise InvalidRequest("the body is not JSON") from None
    return _checked(model, found, "the body's", strict=True)


def _checked(model: type[BaseModel], found: Any, what: str, *, strict: bool) -> BaseModel:
    try:
        return model.model_validate(found, strict=strict)
    except ValidationError as error:
        problems = [
            f"{what} {'.'.join(str(part) for part in one['loc']) or 'content'}: {one['msg']}"
            for one in error.errors(include_input=False, include_url=False)[:5]
        ]
        raise InvalidRequest("; ".join(problems)) from None

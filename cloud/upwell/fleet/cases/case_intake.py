"""Cases from devices: stored in a folder, or uploaded to a bucket with a URL signed for each.

A device authenticates by its certificate. Names are `<device id>/<case id>.case`, so a duplicate upload is stored
once, and no device can touch another's cases.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from datetime import datetime, timezone
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from upwell.fleet.api.rest_endpoint import problem, problem_of
from upwell.fleet.cases.url_signing import ObjectRequest, read_credentials, sign_url
from upwell.fleet.config import BucketSection, CaseIntakeSection
from upwell.fleet.enrolment.certificate_authority import serial_of_der
from upwell.fleet.errors import NotFound
from upwell.fleet.opamp.opamp_endpoint import PEER, TooLarge
from upwell.fleet.registry.devices import by_certificate
from upwell.fleet.storage.database import Database
from upwell.shared.errors import ConfigError, InvalidRequest, Unauthenticated, UpwellError
from upwell.shared.files import write_whole
from upwell.shared.opamp.wire_names import CASE_ID, CASE_SUFFIX, CASES_PATH, case_upload_s

MOST_BYTES = 256 << 20
"""Maximum bytes of bodies in transfer; devices beyond it must retry later."""

_AGAIN_S = 30.0
_RECOUNT_S = 60.0
_log = logging.getLogger(__name__)


class CaseIntake:
    """The endpoints that devices call. Raises `ConfigError` if the credentials of the bucket are invalid now."""

    def __init__(self, section: CaseIntakeSection, database: Database) -> None:
        self._section, self._database = section, database
        self._kept = None if section.folder is None else _CaseFolder(section.folder, section.limit)
        self._under_way_bytes = 0
        if section.bucket is not None:
            read_credentials(section.bucket.credentials_file, section.bucket.profile)

    def routes(self) -> list[Route]:
        """The paths."""
        path = f"{CASES_PATH}/{{id}}"
        return [Route(path, self.take, methods=["PUT"]), Route(f"{path}/url", self.sign, methods=["POST"])]

    async def take(self, request: Request) -> Response:
        """`PUT /v1/cases/{id}`: the case itself."""
        try:
            kept = self._kept
            if kept is None:
                raise NotFound("this service does not store cases itself; expected `cases.folder` in fleet.yaml")
            name, size_bytes = await self._named(request), self._size(request.headers.get("content-length"))
            if self._under_way_bytes + size_bytes > MOST_BYTES:
                return _later(HTTPStatus.SERVICE_UNAVAILABLE, "the service is busy")
            self._under_way_bytes += size_bytes
            try:
                data = await asyncio.wait_for(_body(request, size_bytes), case_upload_s(size_bytes))
                await run_in_threadpool(kept.put, name, data)
            finally:
                self._under_way_bytes -= size_bytes
        except _Full as error:
            return _later(HTTPStatus.INSUFFICIENT_STORAGE, str(error))
        except (asyncio.TimeoutError, ClientDisconnect):
            return problem_of(HTTPStatus.BAD_REQUEST, "the body is incomplete")
        except UpwellError as error:
            return problem(error)
        return JSONResponse({"kept": name})

    async def sign(self, request: Request) -> Response:
        """`POST /v1/cases/{id}/url?size_bytes=N`: where to upload it."""
        try:
            bucket = self._section.bucket
            if bucket is None:
                raise NotFound("this service has no object storage; expected `cases.bucket` in fleet.yaml")
            name, size_bytes = await self._named(request), self._size(request.query_params.get("size_bytes"))
            url = await run_in_threadpool(_signed, bucket, name, size_bytes)
        except ConfigError as error:  # the credentials were changed to invalid ones
            _log.error("addresses cannot be signed: %s", error)
            return _later(HTTPStatus.SERVICE_UNAVAILABLE, "the service cannot sign addresses for now")
        except UpwellError as error:
            return problem(error)
        return JSONResponse({"url": url})

    async def _named(self, request: Request) -> str:
        """The name of a case, by its sender. Raises `Unauthenticated` and `InvalidRequest`."""
        certificate = request.scope.get(PEER)
        if not certificate:
            raise Unauthenticated("expected the certificate of a device that has enrolled")
        device = await run_in_threadpool(self._device, serial_of_der(certificate))
        id = str(request.path_params["id"])
        if re.fullmatch(CASE_ID, id) is None:
            raise InvalidRequest("expected a case id of 32 hexadecimal digits")
        return f"{device}/{id}{CASE_SUFFIX}"

    def _device(self, serial: str) -> str:
        with self._database.reading() as connection:
            device = by_certificate(connection, serial)
        if device is None:
            raise Unauthenticated("this certificate is unknown here or was revoked")
        return str(device["id"])

    def _size(self, text: str | None) -> int:
        if text is None or not (text.isascii() and text.isdigit()):
            raise InvalidRequest("expected the case's size in bytes")
        if int(text[:19]) > self._section.max_case:
            raise TooLarge(f"the case has {text[:19]} bytes; expected at most {self._section.max_case} (`max_case`)")
        return int(text)


class _Full(Exception):
    """The folder has no room."""


class _CaseFolder:
    """The folder. Its size is counted once and then added up; when it seems full, it is counted again, at intervals."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder, self._limit_bytes = folder, limit_bytes
        self._lock = threading.Lock()
        self._held_bytes: int | None = None
        self._counted_at_s = 0.0

    def put(self, name: str, data: bytes) -> None:
        """Store a case. Raises `_Full`; stored cases stay."""
        path = self._folder / name
        try:
            self._reserve(len(data))
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, data, 0o600)
        except OSError as error:
            with self._lock:
                self._held_bytes = None
            _log.error("a case cannot be stored: %s: %s", self._folder, error.strerror)
            raise _Full("the service cannot store it for now") from None

    def _reserve(self, size_bytes: int) -> None:
        now_s = time.monotonic()
        with self._lock:
            held = self._held_bytes
            if held is None or (held + size_bytes > self._limit_bytes and now_s > self._counted_at_s + _RECOUNT_S):
                held = sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())
                self._counted_at_s = now_s
            if held + size_bytes > self._limit_bytes:
                self._held_bytes = held
                raise _Full("the folder for cases is full")
            self._held_bytes = held + size_bytes


async def _body(request: Request, size_bytes: int) -> bytes:
    """The whole body; the server enforces its Content-Length."""
    data = bytearray()
    async for piece in request.stream():
        data += piece
    if len(data) != size_bytes:
        raise InvalidRequest("the body's length does not match its Content-Length")
    return bytes(data)


def _signed(bucket: BucketSection, name: str, size_bytes: int) -> str:
    credentials = read_credentials(bucket.credentials_file, bucket.profile)
    request = ObjectRequest("PUT", f"{bucket.url}/{name}", {"Content-Length": str(size_bytes)})
    now = datetime.now(timezone.utc)
    return sign_url(request, credentials, bucket.region, at=now, expires_s=round(bucket.expires))


def _later(status: HTTPStatus, text: str, **more: Any) -> Response:
    return problem_of(status, text, {"Retry-After": str(round(_AGAIN_S)), **more})

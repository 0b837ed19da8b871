"""Cases from devices: stored in a folder, or uploaded to a bucket of S3-compatible storage, with a URL for each."""

from __future__ import annotations

import asyncio
import configparser
import hashlib
import hmac
import logging
import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from upwell.fleet.api.rest_endpoint import problem, problem_of
from upwell.fleet.config import BucketSection, CaseIntakeSection
from upwell.fleet.enrolment.certificate_authority import serial_of_der
from upwell.fleet.errors import NotFound
from upwell.fleet.opamp.opamp_endpoint import PEER, TooLarge
from upwell.fleet.registry.devices import by_certificate
from upwell.fleet.storage.database import Database
from upwell.shared.errors import ConfigError, InvalidRequest, Unauthenticated, UpwellError
from upwell.shared.files import read_file, write_whole
from upwell.shared.opamp import CASE_ID, CASE_SUFFIX, CASES_PATH, case_upload_s

_ALGORITHM = "AWS4-HMAC-SHA256"
_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


@dataclass(frozen=True)
class Credentials:
    """The credentials whose permission a URL carries. `session_token` is empty unless the key is temporary."""

    key_id: str
    secret: str = field(repr=False)
    session_token: str = field(default="", repr=False)


def read_credentials(path: Path | None, profile: str) -> Credentials:
    """Credentials from a file in the format of `~/.aws/credentials`, or without a file from the environment's
    `AWS_…`.

    Raises `ConfigError`, which shows none of them.
    """
    if path is None:
        found = {name: os.environ.get(name, "") for name in _VARIABLES}
        text = "expected `credentials_file`, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"
    else:
        found = _of_file(path, profile)
        text = f"expected [{profile}] with aws_access_key_id and aws_secret_access_key"
    key_id, secret, token = (found[name] for name in _VARIABLES)
    if not key_id or not secret:
        raise ConfigError.at(path, text, "" if path else "fleet.cases.bucket")
    return Credentials(key_id, secret, token)


def _of_file(path: Path, profile: str) -> dict[str, str]:
    """The credentials in the file; all empty if it cannot be parsed, in which case nothing of it is shown."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(read_file(path, "the credentials of the object storage", 64 << 10).decode())
        return {name: parser[profile].get(name.lower(), "") for name in _VARIABLES}
    except (configparser.Error, UnicodeDecodeError, KeyError):
        return dict.fromkeys(_VARIABLES, "")


@dataclass(frozen=True)
class ObjectRequest:
    """One request to the storage, with exactly these `headers` beside `Host`.

    The path of `url` is already escaped, and its port omitted if it is the default.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)


def sign_url(request: ObjectRequest, credentials: Credentials, region: str, *, at: datetime, expires_s: int) -> str:
    """The request's URL with a signature valid from `at` (UTC) for `expires_s`.

    AWS Signature Version 4 in the query, with an unsigned payload:

        signature = HMAC(HMAC(HMAC(HMAC(HMAC("AWS4" + secret, date), region), "s3"), "aws4_request"), text)

    where HMAC is HMAC-SHA256 and `text` holds algorithm, time, scope, and the SHA-256 of the request in its canonical
    form. Source: AWS, Authenticating Requests: Using Query Parameters.
    """
    parts = urlsplit(request.url)
    stamp, day = at.strftime("%Y%m%dT%H%M%SZ"), at.strftime("%Y%m%d")
    scope = f"{day}/{region}/s3/aws4_request"
    signed = {name.lower(): value for name, value in request.headers.items()} | {"host": parts.netloc}
    names = ";".join(sorted(signed))
    query = {
        "X-Amz-Algorithm": _ALGORITHM, "X-Amz-Credential": f"{credentials.key_id}/{scope}", "X-Amz-Date": stamp,
        "X-Amz-Expires": str(expires_s), "X-Amz-SignedHeaders": names,
    }  # fmt: skip
    if credentials.session_token:
        query["X-Amz-Security-Token"] = credentials.session_token
    asked = "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in sorted(query.items()))
    lines = [f"{name}:{signed[name]}" for name in sorted(signed)]
    canonical = "\n".join([request.method, parts.path or "/", asked, *lines, "", names, "UNSIGNED-PAYLOAD"])
    text = "\n".join([_ALGORITHM, stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{credentials.secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    return f"{parts.scheme}://{parts.netloc}{parts.path}?{asked}&X-Amz-Signature={signature}"


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
        if len(text) > 18 or int(text) > self._section.max_case:
            raise TooLarge(f"the case has {text[:18]} bytes; expected at most {self._section.max_case} (`max_case`)")
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

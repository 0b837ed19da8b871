"""Signed URLs of S3-compatible object storage, each valid for one request and a short time."""

from __future__ import annotations

import configparser
import hashlib
import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.parse import quote, urlsplit

from upwell.shared.errors import ConfigError
from upwell.shared.files import read_file

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

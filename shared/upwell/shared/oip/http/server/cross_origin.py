"""Cross-Origin Resource Sharing: which sites' pages may call, from the origins that the operator has configured.

Source: https://fetch.spec.whatwg.org/#http-cors-protocol
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from upwell.shared.oip.http.replies import Rejected, Reply
from upwell.shared.oip.http.server.request import ID_HEADER, TAG_HEADER, TIMEOUT_HEADER

_SENT = ("authorization", "content-type", "inference-header-content-length", "traceparent", ID_HEADER, TIMEOUT_HEADER)
_TOLD = "Inference-Header-Content-Length, Retry-After, Retry-After-Ms, Upwell-Degraded, Upwell-Id, Upwell-Reason, "
_TOLD += "Upwell-Route, Upwell-Status"
_HEADER_NAME = re.compile(r"[a-z0-9-]{1,100}")
_MAX_AGE_S = 600


def _origin(text: str) -> str:
    if re.fullmatch(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:]+\])(?::[0-9]{1,5})?", text) is None:
        raise ValueError(f"expected an origin in lower case, such as https://site.example, got {text!r}")
    return text


Origin: TypeAlias = Annotated[str, AfterValidator(_origin)]
"""The origin of a page: scheme, host and, unless it is the default, port. No wildcards."""


def allowed_origin(headers: Mapping[str, str], origins: Collection[str]) -> str:
    """The origin of the calling page if it is allowed; "" if the caller is no page, or a page of this server.

    Raises `Rejected` (403) for a page of another site, which runs in the browser of a person who can reach this server.
    """
    origin = headers.get("origin", "").strip()
    if origin in origins:
        return origin
    if headers.get("sec-fetch-site", "").strip() == "cross-site":
        raise Rejected(HTTPStatus.FORBIDDEN, "pages of other sites may not call this server")
    return ""


def preflight(method: str, headers: Mapping[str, str]) -> Reply | None:
    """The reply to a browser's preflight request for an allowed page; None if this is not one."""
    if method != "OPTIONS" or "access-control-request-method" not in headers:
        return None
    asked = headers.get("access-control-request-headers", "").lower().replace(" ", "").split(",")
    tags = [name for name in asked if name.startswith(TAG_HEADER) and _HEADER_NAME.fullmatch(name)]
    told = (
        ("Access-Control-Allow-Methods", "GET, POST"),
        ("Access-Control-Allow-Headers", ", ".join((*_SENT, *tags))),
        ("Access-Control-Max-Age", str(_MAX_AGE_S)),
    )
    return Reply(HTTPStatus.OK, told)


def shared_with(origin: str, reply: Reply) -> Reply:
    """The reply with headers that let a page of that origin read it; unchanged if `origin` is ""."""
    if not origin:
        return reply
    told = (("Access-Control-Allow-Origin", origin), ("Access-Control-Expose-Headers", _TOLD), ("Vary", "Origin"))
    return dataclasses.replace(reply, headers=(*reply.headers, *told))

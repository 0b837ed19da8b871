"""Reads the headers of an HTTP request, cross-origin ones too, and raw bodies that are a single input.

Source: https://fetch.spec.whatwg.org/#http-cors-protocol
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus

import numpy as np

from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.codec.tensor_contents import decode_raw
from upwell.shared.oip.dataplane import ModelMetadata, Parameter, Signal
from upwell.shared.oip.http.replies import BINARY, JSON, Rejected, Reply
from upwell.shared.tensors import Array, numpy_dtype

TIMEOUT_HEADER = "upwell-timeout-ms"
"""The header with the caller's time limit in milliseconds."""

TAG_HEADER = "upwell-tag-"
"""Prefix of tag headers: `Upwell-Tag-Camera: dock` is the request parameter `upwell.tag.camera`; names become lower
case."""

ID_HEADER = "upwell-id"
"""The header with the ID of a request with a raw body; JSON bodies contain it."""

HEAD_LENGTH_HEADER = "inference-header-content-length"
"""Triton's header: the number of bytes of JSON in the body; the rest is binary data. 0: the whole body is the only
input."""

PICTURES = ("image/jpeg", "image/png", "image/webp")
"""Content types of pictures. The model's decoder detects the actual format."""

_MAX_HEADER_CHARACTERS = 1000
_FORM = "application/x-www-form-urlencoded"


class Disconnect:
    """Whether the client has left. `leave` is called by the connection's thread, `watched` by the call's."""

    def __init__(self) -> None:
        self._has_left = False
        self._cancelled: Signal | None = None

    def leave(self) -> None:
        """The client has left, or has half-closed."""
        self._has_left = True  # set before the check; `watched` does it in reverse order, so neither misses the other
        if self._cancelled is not None:
            self._cancelled.set()

    @contextmanager
    def watched(self, cancelled: Signal) -> Iterator[None]:
        """Within the context, `cancelled` is set when the client leaves."""
        self._cancelled = cancelled
        if self._has_left:
            cancelled.set()
        try:
            yield
        finally:
            self._cancelled = None


@dataclass(frozen=True)
class HttpRequest:
    """One HTTP request whose headers have been read, but not its body.

    `target` is as the client wrote it; `headers` have lower-case names; `certificate` is the name in the client's
    certificate, "" without one, and `client` that name or the client's address. The request came at `arrived_s`
    (monotonic).
    """

    method: str
    target: str
    headers: Mapping[str, str]
    client: str
    certificate: str
    disconnect: Disconnect
    arrived_s: float


def is_raw(headers: Mapping[str, str]) -> bool:
    """Whether the body is an input as in a file, rather than JSON. Raises `Rejected` (415) for other content types."""
    kind = content_type(headers)
    head = headers.get(HEAD_LENGTH_HEADER)
    if head is not None:
        return head.strip() == "0"
    if kind in PICTURES or kind == BINARY:
        return True
    # curl's default content type, and none at all, say nothing about the body.
    if kind in (JSON, _FORM, ""):
        return False
    known = ", ".join((JSON, *PICTURES, BINARY))
    raise Rejected(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"this content type is not supported; expected {known}")


_SEARCHED_BYTES = 1 << 16


def looks_like_json(headers: Mapping[str, str], body: memoryview) -> bool:
    """Whether the body is a JSON request with a content type of plain bytes, as Triton's asyncio client sends it."""
    if content_type(headers) != BINARY or HEAD_LENGTH_HEADER in headers:
        return False
    return bytes(body[:1]) == b"{" and bytes(body[-1:]) == b"}" and b'"inputs"' in bytes(body[:_SEARCHED_BYTES])


def content_type(headers: Mapping[str, str]) -> str:
    """The content type in lower case, without parameters; "" if missing."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def head_bytes(headers: Mapping[str, str], body_bytes: int) -> int:
    """The number of JSON bytes in the body. Raises `InvalidRequest`."""
    text = headers.get(HEAD_LENGTH_HEADER)
    if text is None:
        return body_bytes
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= body_bytes):
        raise InvalidRequest(
            f"expected Inference-Header-Content-Length to be a number of bytes, at most the body's {body_bytes}"
        )
    return int(text)


def timeout_s(headers: Mapping[str, str]) -> float:
    """The caller's time limit in seconds; infinite without one. Raises `InvalidRequest`."""
    text = headers.get(TIMEOUT_HEADER)
    if text is None:
        return math.inf
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = math.nan
    if not 0 < milliseconds < math.inf:
        raise InvalidRequest("expected Upwell-Timeout-Ms to be a number of milliseconds above 0")
    return milliseconds / 1000


def with_tags(parameters: Mapping[str, Parameter], headers: Mapping[str, str]) -> Mapping[str, Parameter]:
    """The request's parameters and the tags from its headers.

    Raises `InvalidRequest` for a tag that is not UTF-8 text, or that differs between body and headers.
    """
    found = dict(parameters)
    for name, value in headers.items():
        if name.startswith(TAG_HEADER):
            try:
                # Headers are read as Latin-1; text beyond ASCII is sent as UTF-8.
                text = value.encode("latin-1").decode()
            except UnicodeError:
                raise InvalidRequest(f"the header {name} is not UTF-8 text") from None
            if found.setdefault(f"upwell.tag.{name.removeprefix(TAG_HEADER)}", text) != text:
                raise InvalidRequest(f"the header {name} and the body's parameters give the tag different values")
    return found


def input_of(metadata: ModelMetadata, body: memoryview, *, is_picture: bool) -> dict[str, Array]:
    """The body as the model's only input: one BYTES element, or a tensor whose shape follows from the size.

    At most one dimension may vary. Raises `InvalidRequest` if the model's inputs do not fit.
    """
    if len(metadata.inputs) != 1:
        names = ", ".join(repr(spec.name) for spec in metadata.inputs)
        raise InvalidRequest(f"a raw body is one input, but {metadata.name!r} has {len(metadata.inputs)}: {names}")
    spec = metadata.inputs[0]
    if spec.datatype == "BYTES":
        if spec.shape not in ((-1,), (1,)):
            raise InvalidRequest(f"a raw body is one element, but {spec.name!r} has the shape {list(spec.shape)}")
        array = np.empty(1, dtype=np.object_)
        array[0] = bytes(body)
        return {spec.name: array}
    if is_picture:
        raise InvalidRequest(f"{metadata.name!r} takes {spec.datatype} tensors, not pictures; send their raw contents")
    shape = _fitting(spec.name, spec.datatype, spec.shape, len(body))
    return {spec.name: decode_raw(spec.name, spec.datatype, shape, body)}


def _fitting(name: str, datatype: str, shape: tuple[int, ...], size_bytes: int) -> tuple[int, ...]:
    unknown = [index for index, size in enumerate(shape) if size < 0]
    if len(unknown) > 1:
        raise InvalidRequest(f"{name!r} has the shape {list(shape)}: the body's size does not determine it")
    row_bytes = math.prod(size for size in shape if size >= 0) * numpy_dtype(datatype).itemsize
    if not unknown or row_bytes == 0:
        return shape
    if size_bytes == 0 or size_bytes % row_bytes:
        raise InvalidRequest(
            f"{name!r} is {datatype} of shape {list(shape)}, a multiple of {row_bytes} bytes; the body has {size_bytes}"
        )
    return tuple(size_bytes // row_bytes if size < 0 else size for size in shape)


def fact_headers(parameters: Mapping[str, Parameter]) -> list[tuple[str, str]]:
    """The answer's facts as headers: `upwell.cloud_compute_ms` as `Upwell-Cloud-Compute-Ms`."""
    headers: list[tuple[str, str]] = []
    for key, value in parameters.items():
        name = key.replace(".", "-").replace("_", "-")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        plain = all(" " <= character <= "~" for character in text)
        if key.startswith("upwell.") and name.isascii() and name.replace("-", "").isalnum() and plain:
            headers.append((name.title(), text[:_MAX_HEADER_CHARACTERS]))
    return headers


_SENT = ("authorization", "content-type", "inference-header-content-length", "traceparent", ID_HEADER, TIMEOUT_HEADER)
_TOLD = "Inference-Header-Content-Length, Retry-After, Retry-After-Ms, Upwell-Degraded, Upwell-Id, Upwell-Reason, "
_TOLD += "Upwell-Route, Upwell-Status"
_HEADER_NAME = re.compile(r"[a-z0-9-]{1,100}")
_MAX_AGE_S = 600


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

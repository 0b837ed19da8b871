"""HTTPS requests for all sources: with time limits, never redirected to plain HTTP, without secrets in messages.

Interrupted downloads are resumed.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial as bound
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter

from upwell.edge.updates.sources.base import AvailableBundle, FetchFailed, Progress
from upwell.edge.updates.sources.partial_archive import Partial, fetch_archive
from upwell.shared.config.addresses import Address
from upwell.shared.oip.retry_after import retry_after_s

CONNECT_S = 10.0
READ_S = 30.0
"""Time limit for connecting, and for the next byte of a connection."""

_CHUNK_BYTES = 64 << 10
_MOST_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)")
_LENGTH = re.compile(r"\d{1,18}")


class Web:
    """Connections to one source. Used by one thread at a time, except for `close`.

    Proxies from the environment are used, and so is netrc, unless a request has its own `Authorization`.
    """

    def __init__(self, ca: Path | None = None) -> None:
        self.session = requests.Session()
        self._verify: str | bool = True if ca is None else str(ca)
        # Set explicitly, so that it overrides another bundle named in the environment.
        self.session.verify = self._verify
        self.session.headers.update({"Accept-Encoding": "identity", "User-Agent": "upwell"})
        for scheme in ("https://", "http://"):
            self.session.mount(scheme, _Impatient())
        self._response: requests.Response | None = None
        self._is_closed = False

    def open(self, method: str, url: str, headers: Mapping[str, str]) -> requests.Response:
        """The response, whatever its status, with its body still to come; the caller closes it. Raises `FetchFailed`.

        Redirects are followed; `Authorization` goes only to the host it is meant for.
        """
        sent = dict(headers)
        for _ in range(_MOST_REDIRECTS + 1):
            response = self._ask(method, url, sent)
            target = response.headers.get("Location")
            if response.status_code not in _REDIRECTS or not target:
                return response
            response.close()
            target = urljoin(url, target)
            if not is_safe(target, after=url):
                raise FetchFailed(
                    f"{host_of(url)}: redirects to {urlsplit(target).scheme}://{host_of(target)}; expected https"
                )
            if _origin(target) != _origin(url):
                sent.pop("Authorization", None)
            url = target
        raise FetchFailed(f"{host_of(url)}: redirects more than {_MOST_REDIRECTS} times")

    def chunks(self, response: requests.Response) -> Iterator[bytes]:
        """The body, each piece as soon as it arrives. Raises `FetchFailed` if it breaks off."""
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise FetchFailed(f"{host_of(response.url)}: sends it compressed; expected it uncompressed")
        while True:
            self._check_open()
            try:
                data: bytes = response.raw.read1(_CHUNK_BYTES, decode_content=False)
            except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError) as error:
                self._check_open()
                raise FetchFailed(f"{host_of(response.url)}: {_why(error)}") from None
            if not data:
                self._check_open()
                return
            yield data

    def read(self, response: requests.Response, max_bytes: int) -> bytes:
        """A whole small body. Raises `FetchFailed` if it is larger."""
        found = bytearray()
        for data in self.chunks(response):
            found += data
            if len(found) > max_bytes:
                raise FetchFailed(f"{host_of(response.url)}: answers with more than {max_bytes} bytes")
        return bytes(found)

    def close(self) -> None:
        """End what is in progress, from any thread. Calling it twice is harmless."""
        self._is_closed = True
        response = self._response
        if response is not None:
            # A connection that has just ended by itself cannot be shut down.
            with contextlib.suppress(OSError, RuntimeError, ValueError, AttributeError):
                response.raw.shutdown()
        self.session.close()

    def _ask(self, method: str, url: str, headers: Mapping[str, str]) -> requests.Response:
        self._check_open()
        auth = _as_written if "Authorization" in headers else None
        try:
            self._response = self.session.request(
                method, url, headers=headers, auth=auth, stream=True, allow_redirects=False, verify=self._verify
            )
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise FetchFailed(f"{host_of(url)}: {_why(error)}") from None
        return self._response

    def _check_open(self) -> None:
        if self._is_closed:
            raise FetchFailed("fetching was stopped")


class _Impatient(HTTPAdapter):
    """Enforces the time limits, also when a library sets none."""

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        """See `HTTPAdapter.send`."""
        kwargs["timeout"] = kwargs.get("timeout") or (CONNECT_S, READ_S)
        return super().send(request, *args, **kwargs)


def download(
    web: Web,
    ask: Callable[[Mapping[str, str]], requests.Response],
    partial: Partial,
    condition: Mapping[str, str] | None,
    check: Callable[[requests.Response], None],
) -> None:
    """Fetch what is missing into `partial`. Raises `FetchFailed`; the bytes received by then are kept.

    `ask` sends the request with the given headers. `condition` accompanies a request for the rest (`If-Range`); with
    None the whole is fetched again. `check` raises if the response is not what was offered.
    """
    headers: dict[str, str] = {}
    if partial.size_bytes and condition is not None:
        headers = {"Range": f"bytes={partial.size_bytes}-", **condition}
    with ask(headers) as response:
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            partial.restart()
            raise FetchFailed(f"{host_of(response.url)}: has fewer bytes now than were fetched; they were discarded")
        if response.status_code not in (requests.codes.ok, requests.codes.partial_content):
            raise failure(response)
        check(response)
        whole_bytes = _begin(response, partial)
        partial.expect(whole_bytes)
        for data in web.chunks(response):
            partial.append(data)
        if whole_bytes and partial.size_bytes != whole_bytes:
            raise FetchFailed(
                f"{host_of(response.url)}: the connection broke after {partial.size_bytes} of {whole_bytes} bytes"
            )


def length_of(response: requests.Response) -> int:
    """The value of `Content-Length`; 0 if missing."""
    found = _LENGTH.fullmatch(response.headers.get("Content-Length", ""))
    return int(found[0]) if found else 0


def _begin(response: requests.Response, partial: Partial) -> int:
    """Prepare `partial` for the coming body; return the total size, 0 if unknown."""
    if response.status_code == requests.codes.ok:
        if partial.size_bytes:  # a server without ranges, or a changed file
            partial.restart()
        return length_of(response)
    found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if found is None or int(found[1]) != partial.size_bytes:
        raise FetchFailed(
            f"{host_of(response.url)}: sends another range than the one from byte {partial.size_bytes} onwards"
        )
    return 0 if found[2] == "*" else int(found[2])


def is_safe(url: str, *, after: str = "") -> bool:
    """Whether nobody in between can read or change the data: https, or this machine.

    `after` is the address that redirected there: https never leads back to plain HTTP.
    """
    parts = urlsplit(url)
    if parts.scheme == "https":
        return bool(parts.hostname)
    was_plain = not after or urlsplit(after).scheme == "http"
    return parts.scheme == "http" and was_plain and Address(parts.hostname or "").is_loopback


def failure(response: requests.Response) -> FetchFailed:
    """The error for an unusable response."""
    asked = response.headers.get("Retry-After", "") if response.status_code in (429, 503) else ""
    return FetchFailed(
        f"{host_of(response.url)}: answers {response.status_code} {response.reason}", retry_after_s(asked, time.time())
    )


def host_of(url: str | None) -> str:
    """Host and port of an address, without anything that may be secret."""
    parts = urlsplit(url or "")
    return parts.netloc.rpartition("@")[2]


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _as_written(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Prevents netrc from overwriting the request's own header."""
    return request


def _why(error: BaseException) -> str:
    """One line without addresses: those of object stores contain their signatures."""
    cause: BaseException | None = error
    seen: list[BaseException] = []
    while cause is not None and cause not in seen:
        seen.append(cause)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}"
        inner = getattr(cause, "reason", None)
        causes = (inner, *cause.args, cause.__cause__, cause.__context__)
        cause = next((one for one in causes if isinstance(one, BaseException) and one not in seen), None)
    if any(isinstance(one, (requests.Timeout, urllib3.exceptions.TimeoutError, TimeoutError)) for one in seen):
        return "does not answer in time"
    if any(isinstance(one, ssl.SSLError) for one in seen):
        return "no TLS connection"
    said = next((one.strerror for one in seen if isinstance(one, OSError) and one.strerror), "")
    return said or "the connection broke"


_NOTHING_THERE = frozenset({404, 410})
_NO_HEAD = frozenset({405, 501})


class WebSource:
    """A `Source`: one archive on a web server.

    Versions are told apart by the ETag, or else the Last-Modified; a server must send one of them. Credentials come
    from netrc (`NETRC`, `~/.netrc`), never from the address.
    """

    def __init__(self, url: str, *, sha256: str = "", ca: Path | None = None) -> None:
        """`sha256` is the digest of the archive, if it is known from elsewhere."""
        self._url = url
        self._sha256 = sha256
        self._web = Web(ca)

    def newest(self) -> AvailableBundle | None:
        """The current file at the address. If the server does not support HEAD, a GET is sent and cut off."""
        for method in ("HEAD", "GET"):
            with self._web.open(method, self._url, {}) as response:
                if response.status_code in _NO_HEAD and method == "HEAD":
                    continue
                if response.status_code in _NOTHING_THERE:
                    return None
                if response.status_code != requests.codes.ok:
                    raise failure(response)
                return AvailableBundle(_token(response.headers, self._url), self._sha256, length_of(response))
        raise AssertionError  # the response to GET ends the loop

    def fetch(self, offer: AvailableBundle, into: Path, progress: Progress) -> Path:
        """The archive, fetched or resumed. If it changed meanwhile, that is `FetchFailed`: check again."""
        return fetch_archive(offer, into, progress, bound(self._download, offer))

    def close(self) -> None:
        """End what is in progress."""
        self._web.close()

    def _download(self, offer: AvailableBundle, partial: Partial) -> None:
        kind, _, value = offer.token.partition(" ")
        # A weak ETag does not promise the same bytes, so nothing may be assembled by it.
        condition = None if kind == "weak" else {"If-Range": value}
        ask = bound(self._web.open, "GET", self._url)
        download(self._web, ask, partial, condition, lambda response: self._check(response, offer, partial))

    def _check(self, response: requests.Response, offer: AvailableBundle, partial: Partial) -> None:
        if response.status_code == requests.codes.partial_content and "ETag" not in response.headers:
            return  # the server has compared it
        if _token(response.headers, self._url) != offer.token:
            partial.drop()
            raise FetchFailed(
                f"{host_of(self._url)}: the file changed while it was being fetched; the download starts over"
            )


def _token(headers: Mapping[str, str], url: str) -> str:
    etag, modified = headers.get("ETag", "").strip(), headers.get("Last-Modified", "").strip()
    if etag:
        return f"weak {etag}" if etag.startswith("W/") else f"etag {etag}"
    if not modified:
        raise FetchFailed(
            f"{host_of(url)}: sends neither ETag nor Last-Modified; expected one, to know when there is something new"
        )
    return f"modified {modified}"

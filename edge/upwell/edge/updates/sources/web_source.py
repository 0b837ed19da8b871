"""One archive on a web server: `https://host/digits.bundle.tar`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial as bound
from pathlib import Path

import requests

from upwell.edge.updates.sources.base import AvailableBundle, FetchFailed, Progress
from upwell.edge.updates.sources.partial import Partial, fetch_archive
from upwell.edge.updates.sources.web import Web, download, failure, host_of, length_of

_NOTHING_THERE = frozenset({404, 410})
_NO_HEAD = frozenset({405, 501})


class WebSource:
    """A `Source`. What is there is told apart by its ETag, else by its Last-Modified; a server must state one of them.

    Credentials come from netrc (`NETRC`, `~/.netrc`), never from the address.
    """

    def __init__(self, url: str, *, sha256: str = "", ca: Path | None = None) -> None:
        """`sha256` is that of the archive, where it is known from elsewhere."""
        self._url = url
        self._sha256 = sha256
        self._web = Web(ca)

    def newest(self) -> AvailableBundle | None:
        """What is at the address now. A server that knows no HEAD is asked with GET, and hung up on."""
        for method in ("HEAD", "GET"):
            with self._web.open(method, self._url, {}) as response:
                if response.status_code in _NO_HEAD and method == "HEAD":
                    continue
                if response.status_code in _NOTHING_THERE:
                    return None
                if response.status_code != requests.codes.ok:
                    raise failure(response)
                return AvailableBundle(_token(response.headers, self._url), self._sha256, length_of(response))
        raise AssertionError  # the answer to GET ends the loop

    def fetch(self, offer: AvailableBundle, into: Path, progress: Progress) -> Path:
        """The archive, fetched or taken up again. One that changed meanwhile is `FetchFailed`: look again."""
        return fetch_archive(offer, into, progress, bound(self._download, offer))

    def close(self) -> None:
        """End what is under way."""
        self._web.close()

    def _download(self, offer: AvailableBundle, partial: Partial) -> None:
        kind, _, value = offer.token.partition(" ")
        # A weak ETag does not promise the same bytes, so that nothing may be put together by it.
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

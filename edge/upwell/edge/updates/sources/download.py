"""One file over HTTP, taken up where it broke off."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import requests

from upwell.edge.updates.sources.base import FetchFailed
from upwell.edge.updates.sources.partial import Partial
from upwell.edge.updates.sources.web import Web, failure, host_of

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)")
_LENGTH = re.compile(r"\d{1,18}")


def download(
    web: Web,
    ask: Callable[[Mapping[str, str]], requests.Response],
    partial: Partial,
    condition: Mapping[str, str] | None,
    check: Callable[[requests.Response], None],
) -> None:
    """Bring what is missing into `partial`. Raises `FetchFailed`; what came by then is kept.

    `ask` sends the request with the headers given. `condition` goes with a request for the rest (`If-Range`); with None
    the rest is not asked for, and the whole is fetched anew. `check` raises where the answer is not what was offered.
    """
    headers: dict[str, str] = {}
    if partial.size_bytes and condition is not None:
        headers = {"Range": f"bytes={partial.size_bytes}-", **condition}
    with ask(headers) as response:
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            partial.restart()
            raise FetchFailed(f"{host_of(response.url)}: has fewer bytes now than were fetched; they were dropped")
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
    """What `Content-Length` says; 0 if nothing."""
    found = _LENGTH.fullmatch(response.headers.get("Content-Length", ""))
    return int(found[0]) if found else 0


def _begin(response: requests.Response, partial: Partial) -> int:
    """Make `partial` ready for the body that comes; the size of the whole, 0 if unknown."""
    if response.status_code == requests.codes.ok:
        if partial.size_bytes:  # a server without ranges, or a file that has changed
            partial.restart()
        return length_of(response)
    found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if found is None or int(found[1]) != partial.size_bytes:
        raise FetchFailed(f"{host_of(response.url)}: sends another range than byte {partial.size_bytes} and on")
    return 0 if found[2] == "*" else int(found[2])

"""A small HTTP server, on a thread, for the Prometheus page and other pages (`GET` only)."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias
from urllib.parse import parse_qsl
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from upwell.shared.errors import ConfigError

_STATUSES = MappingProxyType({200: "200 OK", 403: "403 Forbidden", 404: "404 Not Found"})


@dataclass(frozen=True)
class PageRequest:
    """A request for a page. `path` is decoded, `host` is the header Host ("" without one); empty query values are
    dropped."""

    path: str
    host: str = ""
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PageReply:
    """The reply with a page: `status` is 200, 403 or 404; `headers` are sent beside content type and length."""

    body: bytes
    content_type: str = "application/json; charset=utf-8"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Page: TypeAlias = Callable[[PageRequest], PageReply]
"""Makes a page for a request, in the request's own thread."""

_TIMEOUT_S = 10.0
_WHOLE_S = 30.0
_MAX_CONNECTIONS = 16


class _Handler(WSGIRequestHandler):
    """Logs no requests, and drops a client that is silent for seconds."""

    timeout = _TIMEOUT_S

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


class _Server(ThreadingWSGIServer):
    """One thread per connection; connections beyond the limit are closed at once, and those that last too long."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._open: dict[socket.socket, float] = {}  # since when (monotonic); the server's thread alone adds to it
        super().__init__(*arguments, **named)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002  as its base takes it
        """Whether there is room for another connection."""
        return len(self._open) < _MAX_CONNECTIONS

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the thread; where none is left, the place is free again."""
        self._open[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:
            del self._open[request]
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, then free the place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._open[request]

    def service_actions(self) -> None:
        """End connections that last too long: a client that sends a byte now and then is never silent for seconds."""
        late_s = time.monotonic() - _WHOLE_S
        for connected, since_s in self._open.copy().items():
            if since_s < late_s:
                with suppress(OSError):  # it has just ended
                    connected.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: the client has left, or was silent for too long."""


class _Server6(_Server):
    address_family = socket.AF_INET6


def serve_pages(
    host: str, port: int, registry: CollectorRegistry, key: str, pages: Mapping[str, Page] | None = None
) -> WSGIServer:
    """Serve `GET /metrics` from `registry`, and `pages` by path; port 0 takes a free one.

    A page `/NAME/` answers `/NAME` and all paths below it that have no page of their own. Raises `ConfigError`, for the
    configuration's `key`, if it cannot listen. `shutdown` ends it.
    """
    metrics, others = make_wsgi_app(registry), dict(pages or {})

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        # WSGI holds the bytes of the path as Latin-1.
        path = environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "replace")
        page = others.get(path) or others.get(f"/{path[1:].partition('/')[0]}/")
        if page is None and path.rstrip("/") in ("", "/metrics"):
            answer: Iterable[bytes] = metrics(environ, start_response)
            return answer
        if page is None:  # a probe of a misspelt path must not find everything well
            start_response(_STATUSES[404], [("Content-Type", "text/plain; charset=utf-8")])
            return [f"expected {', '.join(('/metrics', *others))}\n".encode()]
        if environ["REQUEST_METHOD"] != "GET":
            start_response("405 Method Not Allowed", [("Content-Type", "text/plain; charset=utf-8"), ("Allow", "GET")])
            return [b"this page answers GET only\n"]
        query = dict(parse_qsl(environ.get("QUERY_STRING", "")))
        reply = page(PageRequest(path, environ.get("HTTP_HOST", ""), query))
        start_response(_STATUSES[reply.status], [("Content-Type", reply.content_type), *reply.headers.items()])
        return [reply.body]

    with ConfigError.on_os_error(None, f"cannot listen on {host}:{port}", key):
        server = make_server(host, port, app, _Server6 if ":" in host else _Server, handler_class=_Handler)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server

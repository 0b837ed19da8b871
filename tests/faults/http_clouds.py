"""The scripted cloud over HTTP/1.1: a server of its own, so that it can do what no server of ours would."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc

from tests.faults.clouds import Behaviour, good
from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.codec import converters
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.http.body_converters import RequestedOutput, parse_infer_request, write_infer_response
from upwell.shared.oip.http.replies import HTTP_STATUSES


class Aborted(Exception):
    """The behaviour answers with an error."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        self.code = code
        super().__init__(text)


class Context:
    """What behaviours use of gRPC's context."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def abort(self, code: grpc.StatusCode, text: str) -> None:
        raise Aborted(code, text)

    def add_callback(self, callback: Callable[[], None]) -> None:
        """Called when the client leaves."""

        def watch() -> None:
            with contextlib.suppress(OSError, ValueError):  # closed here
                select.select([self._connection], [], [], 60.0)
            callback()

        threading.Thread(target=watch, daemon=True).start()


class ScriptedHttpCloud:
    """As `ScriptedCloud`: its `behaviour` may be changed between calls; it stops and comes back on one port.

    What a behaviour gives that is no answer to read goes out as the body. `callers` has the far end of the connection
    by which each of `requests` came; `connections` counts those that only asked for metadata as well, of which there
    were as many as `answered_gets` says.
    """

    def __init__(self, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self.behaviour: Behaviour = good
        self.host = host
        self.requests: list[InferRequest] = []
        self.headers: list[str] = []
        self._tls = tls
        self.connections = 0
        self.answered_gets = 0
        self.callers: list[tuple[str, int]] = []
        self.port = 0
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self.start()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    def endpoint(self, address: str) -> str:
        """How an agent writes this cloud, reached at `address`."""
        return f"http://{address}"

    def start(self) -> None:
        """Listen, on the former port if there was one."""
        self._server = _Server((self.host, self.port), self)
        self.port = self._server.server_address[1]
        if self._tls is not None:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Vanish: connections end, calls under way are dropped."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server.drop()
            self._server = None

    def __enter__(self) -> ScriptedHttpCloud:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, where: tuple[str, int], cloud: ScriptedHttpCloud) -> None:
        self.cloud = cloud
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        super().__init__(where, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.cloud.connections += 1
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Callers that leave are what these tests are about."""

    def drop(self) -> None:
        with self._lock:
            for one in self._open:
                with contextlib.suppress(OSError):  # its client may have gone first
                    one.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        self._reply(200, b'{"live":true,"ready":true}')
        self.server.cloud.answered_gets += 1

    def do_POST(self) -> None:
        body = memoryview(self.rfile.read(int(self.headers["Content-Length"])))
        head = int(self.headers["Inference-Header-Content-Length"])
        request = parse_infer_request(self.path.split("/")[3], "", body[:head], body[head:]).request
        cloud = self.server.cloud
        cloud.requests.append(request)
        cloud.callers.append(self.client_address)
        cloud.headers.append(f"{self.path}\n{self.headers}")
        context: Any = Context(self.connection)
        try:
            data = cloud.behaviour(request, context)
        except Aborted as error:
            status = HTTP_STATUSES.get(error.code, 500)
            self._reply(status, json.dumps({"error": str(error)}).encode(), ("Upwell-Status", error.code.name))
            return
        try:
            pieces, raws = write_infer_response(converters.parse_infer_response(data), RequestedOutput(True, {}))
        except InvalidRequest:
            self._reply(200, data)
            return
        written = b"".join(pieces)
        self._reply(200, b"".join([written, *raws]), ("Inference-Header-Content-Length", str(len(written))))

    def _reply(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (("Content-Length", str(len(body))), *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Silence."""

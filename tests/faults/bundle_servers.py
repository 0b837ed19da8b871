"""Where bundles come from in the tests: an HTTPS server that counts what it sends, and a real OCI registry."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import oras.client
import pytest

from tests.faults.certificates import Pair
from upwell.edge.updates.sources.oci_source import ARTIFACT_TYPE, LAYER_TYPE

REGISTRY = shutil.which("docker-registry")
_PIECE_BYTES = 4096
"""Sent at once: a TLS record that a broken link cuts in two is lost whole."""

_RANGE = re.compile(r"bytes=(\d+)-")


class _Quiet(ThreadingHTTPServer):
    """Says nothing of callers that hang up."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@dataclass(frozen=True)
class Asked:
    """A request, and how many bytes of body went out in answer (into the socket at least)."""

    method: str
    path: str
    headers: Mapping[str, str]
    status: int
    start: int


class FileServer:
    """Serves files of a folder over HTTPS (over HTTP without `pair`). Close it, or use it as a context manager.

    `answers` maps a path to a function that answers in place of the file: status, headers, body. `shown` are the
    headers of the request that is being answered.
    """

    def __init__(self, folder: Path, pair: Pair | None = None, *, ranges: bool = True, head: bool = True) -> None:
        self.folder, self.ranges, self.head = folder, ranges, head
        self.etag: Callable[[bytes], str] = lambda data: f'"{hashlib.sha256(data).hexdigest()[:16]}"'
        self.modified = ""
        self.answers: dict[str, Callable[[], tuple[int, Mapping[str, str], bytes]]] = {}
        self.asked: list[Asked] = []
        self.shown: Mapping[str, str] = {}
        self.stall_after: int | None = None
        self.stalled = threading.Event()
        self.release = threading.Event()
        self._server = _Quiet(("127.0.0.1", 0), self._handler())
        if pair is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pair.cert, pair.key)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.scheme = "http" if pair is None else "https"
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def url(self, path: str, port: int | None = None) -> str:
        """The address of a file, by way of another port if one is named."""
        return f"{self.scheme}://127.0.0.1:{port or self.port}/{path}"

    def close(self) -> None:
        """Serve no more."""
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> FileServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server._answer(self)

            def do_HEAD(self) -> None:
                server._answer(self)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        try:
            status, headers, body, start = self._content(handler)
            self.asked.append(Asked(handler.command, handler.path, dict(handler.headers), status, start))
            handler.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                handler.send_header(name, value)
            handler.end_headers()
            if handler.command == "GET":
                self._send(handler, body)
        except (OSError, ssl.SSLError):
            handler.close_connection = True

    def _send(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        if self.stall_after is None:
            for at in range(0, len(body), _PIECE_BYTES):
                handler.wfile.write(body[at : at + _PIECE_BYTES])
            return
        handler.wfile.write(body[: self.stall_after])
        handler.wfile.flush()
        self.stalled.set()
        self.release.wait()
        handler.close_connection = True

    def _content(self, handler: BaseHTTPRequestHandler) -> tuple[int, Mapping[str, str], bytes, int]:
        path = handler.path.lstrip("/")
        self.shown = dict(handler.headers)
        if path in self.answers:
            return *self.answers[path](), 0
        if not self.head and handler.command == "HEAD":
            return 405, {}, b"", 0
        file = self.folder / path
        if not file.is_file():
            return 404, {}, b"", 0
        data = file.read_bytes()
        headers = {"ETag": self.etag(data), "Last-Modified": self.modified}
        headers = {name: value for name, value in headers.items() if value}
        wanted = _RANGE.fullmatch(handler.headers.get("Range", ""))
        same = handler.headers.get("If-Range", "") in ("", *headers.values())
        if not (self.ranges and wanted and same):
            return 200, headers, data, 0
        start = int(wanted[1])
        if start >= len(data):
            return 416, {"Content-Range": f"bytes */{len(data)}"}, b"", start
        return 206, {**headers, "Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}, data[start:], start


_CONFIG = """\
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {root}}}, delete: {{enabled: true}}}}
http: {{addr: "127.0.0.1:{port}", secret: tests{tls}}}
{auth}
"""


class Registry:
    """Debian's `docker-registry` on loopback, empty. Close it, or use it as a context manager.

    With `pair` it speaks TLS, with `users` (lines of htpasswd) it wants to know who asks.
    """

    def __init__(self, folder: Path, *, pair: Pair | None = None, users: str = "") -> None:
        assert REGISTRY is not None
        self.root = folder / "registry"
        self.port = _free_port()
        tls = f", tls: {{certificate: {pair.cert}, key: {pair.key}}}" if pair else ""
        auth = ""
        if users:
            (folder / "htpasswd").write_text(users)
            auth = f"auth: {{htpasswd: {{realm: tests, path: {folder / 'htpasswd'}}}}}"
        config = folder / "registry.yml"
        config.write_text(_CONFIG.format(root=self.root, port=self.port, tls=tls, auth=auth))
        self._log = (folder / "registry.log").open("wb")
        self._process = subprocess.Popen([REGISTRY, "serve", str(config)], stdout=self._log, stderr=self._log)
        self._wait()

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    def push(
        self,
        archive: Path,
        name: str = "digits:latest",
        *,
        kind: str = ARTIFACT_TYPE,
        layer: str = LAYER_TYPE,
        credentials: tuple[str, str] | None = None,
        ca: Path | None = None,
    ) -> str:
        """Push an archive with `oras`; the digest of its manifest."""
        client = oras.client.OrasClient(
            insecure=ca is None, tls_verify=str(ca or True), auth_backend="basic" if credentials else "token"
        )
        if credentials:
            client.auth.set_basic_auth(*credentials)
        done = client.push(
            target=f"{self.address}/{name}",
            files=[f"{archive}:{layer}"],
            manifest_config=f"/dev/null:{kind}",
            disable_path_validation=True,
        )
        client.session.close()
        return str(done.headers["Docker-Content-Digest"])

    def blob(self, sha256: str) -> Path:
        """Where the registry keeps a blob."""
        return self.root / f"docker/registry/v2/blobs/sha256/{sha256[:2]}/{sha256}/data"

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()
        self._log.close()

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self) -> None:
        while self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
        raise AssertionError("docker-registry did not start: " + Path(self._log.name).read_text())


def need_registry() -> None:
    """Skip a test where no registry is installed; fail where one has to be."""
    if REGISTRY is None:
        missing = "docker-registry is not installed (Debian's package docker-registry)"
        if os.environ.get("UPWELL_NEEDS_REGISTRY") == "1":
            pytest.fail(missing)
        pytest.skip(missing)


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port

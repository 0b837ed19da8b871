"""Certificates and tokens that are replaced while many call: whoever may call is answered throughout, others are not.

Each client calls all the time, over gRPC or HTTP. What a client holds is replaced only once the server knows the new
one, and the server forgets the old one only once no client holds it: the order in which an operator does it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.faults.attacking import write_models
from tests.faults.certificates import Authority, Pair
from tests.faults.programs import Program
from upwell.shared.config.security import ClientSecurity, TlsFiles
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient, RemoteError, RemoteErrorKind
from upwell.shared.oip.http.client.client import HttpClient

CLIENTS = 4
ROUNDS = 3
CALLS = 5
"""On each connection of a client that makes new ones."""
PAUSE_S = 0.005
"""Between two calls of a client; without one those that keep a connection would take the machine from the others."""
LIMIT_S = 20.0
SOON_S = 2.0
REQUEST = InferRequest("linear", {"x": np.ones((1, 8), np.float32)})


def put(path: Path, data: bytes) -> None:
    """Write a file whole, as an operator should."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(data)
    os.replace(new, path)


def connect(address: str, security: ClientSecurity) -> OipClient | HttpClient:
    return (HttpClient if address.startswith("https:") else OipClient)(address, security)


class Caller:
    """A client with files of its own, which calls all the time: on a new connection every few calls, or `is_kept`,
    and so on as few as it takes."""

    def __init__(self, folder: Path, address: str, ca: bytes, *, is_kept: bool) -> None:
        folder.mkdir()
        self.files = TlsFiles(folder / "own.pem", folder / "own.pem", folder / "ca.pem")
        self.token = folder / "token"
        self.answered = 0
        self.failures: list[RemoteError] = []
        self._address = address
        self._calls = sys.maxsize if is_kept else CALLS
        self._ending = threading.Event()
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._run)
        put(folder / "ca.pem", ca)

    def trust(self, ca: bytes) -> None:
        assert self.files.ca is not None
        put(self.files.ca, ca)

    def show(self, pair: Pair) -> None:
        """Take another certificate: one file holds it and its key, since two cannot be replaced at once."""
        assert self.files.cert is not None
        put(self.files.cert, pair.cert.read_bytes() + pair.key.read_bytes())

    def carry(self, token: str) -> None:
        put(self.token, token.encode())

    def start(self) -> None:
        self._thread.start()

    def until(self, answered: int) -> None:
        """Wait until so many calls have been answered, or one has failed."""
        with self._news:
            assert self._news.wait_for(lambda: self.answered >= answered or self.failures, LIMIT_S)

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.is_set():
            client = connect(self._address, ClientSecurity(self.files, self.token))
            try:
                for _ in range(self._calls):
                    if self._ending.is_set():
                        break
                    client.infer(REQUEST, LIMIT_S)
                    with self._news:
                        self.answered += 1
                        self._news.notify_all()
                    self._ending.wait(PAUSE_S)
            except RemoteError as error:
                with self._news:
                    self.failures.append(error)
                    self._news.notify_all()
            finally:
                client.close()


class Operator:
    """The service's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def server(self, authority: Authority) -> None:
        self._count += 1
        pair = authority.sign(f"server-{self._count}")
        put(self.folder / "server.pem", pair.cert.read_bytes())
        put(self.folder / "server.key", pair.key.read_bytes())

    def trust(self, *authorities: Authority) -> None:
        put(self.folder / "clients.pem", bundle(*authorities))

    def tokens(self, *tokens: str) -> None:
        entries = [f"  - {{name: {one}, sha256: {hashlib.sha256(one.encode()).hexdigest()}}}\n" for one in tokens]
        put(self.folder / "tokens.yaml", ("version: 1\ntokens:\n" + "".join(entries)).encode())


def bundle(*authorities: Authority) -> bytes:
    return b"".join(one.ca.read_bytes() for one in authorities)


def authority(folder: Path, name: str) -> Authority:
    own = folder / name
    own.mkdir()
    return Authority(own, name)


@contextmanager
def serving(folder: Path, way: str) -> Iterator[str]:
    """The address of a service, as a client of that way is given it."""
    write_models(folder / "models")
    shutil.rmtree(folder / "models" / "pictures")
    (folder / "cloud.yaml").write_text(
        "version: 1\nserve: {listen: ['127.0.0.1:0'], listen_http: ['127.0.0.1:0'], models: models, "
        "tokens: tokens.yaml, tls: {cert: server.pem, key: server.key, client_ca: clients.pem}}\n"
        "defaults: {instances: 2}\n"
    )
    with Program(["serve", "-c", str(folder / "cloud.yaml")]) as program:
        address = program.address()
        yield address if way == "grpc" else "https://" + program.find(r"HTTP on (\S+)")


def kind_of(address: str, security: ClientSecurity) -> RemoteErrorKind | None:
    client = connect(address, security)
    try:
        client.infer(REQUEST, LIMIT_S)
    except RemoteError as error:
        return error.kind
    finally:
        client.close()
    return None


def refused_soon(address: str, security: ClientSecurity, kinds: Sequence[RemoteErrorKind]) -> None:
    """See that a caller is let in no more, at the latest after `SOON_S`."""
    until_s = time.monotonic() + SOON_S
    while (found := kind_of(address, security)) is None:
        assert time.monotonic() < until_s, "still let in"
    assert found in kinds


@pytest.fixture(params=["grpc", "http"])
def callers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Operator, Authority, list[Caller]]]:
    operator = Operator(tmp_path)
    first = authority(tmp_path, "first")
    operator.server(first)
    operator.trust(first)
    operator.tokens("token-0")
    with serving(tmp_path, request.param) as address:
        clients = [
            Caller(tmp_path / f"client-{index}", address, bundle(first), is_kept=index % 2 == 0)
            for index in range(CLIENTS)
        ]
        for index, client in enumerate(clients):
            client.show(first.sign(f"device-{index}"))
            client.carry("token-0")
            client.start()
        try:
            yield address, operator, first, clients
        finally:
            for client in clients:
                client.end()


def all_go_on(clients: Sequence[Caller]) -> None:
    """See that each has a few more calls answered, for which it needs a new connection unless it keeps its own."""
    wanted = [client.answered + CALLS + 1 for client in clients]
    for client, answered in zip(clients, wanted, strict=True):
        client.until(answered)
    failures = [str(failure) for client in clients for failure in client.failures]
    assert failures == []


def test_tokens_are_replaced_and_no_valid_one_is_refused(
    callers: tuple[str, Operator, Authority, list[Caller]], tmp_path: Path
) -> None:
    address, operator, _, clients = callers
    all_go_on(clients)
    stale = tmp_path / "stale"
    for number in range(1, ROUNDS + 1):
        old, new = f"token-{number - 1}", f"token-{number}"
        operator.tokens(old, new)
        all_go_on(clients)
        for client in clients:
            client.carry(new)
        all_go_on(clients)
        operator.tokens(new)
        stale.write_text(old)
        refused_soon(address, ClientSecurity(clients[0].files, stale), [RemoteErrorKind.UNAUTHENTICATED])
        all_go_on(clients)


def test_certificates_of_both_sides_are_replaced_and_no_valid_one_is_refused(
    callers: tuple[str, Operator, Authority, list[Caller]], tmp_path: Path
) -> None:
    address, operator, current, clients = callers
    all_go_on(clients)
    for number in range(1, ROUNDS + 1):
        new = authority(tmp_path, f"authority-{number}")
        operator.trust(current, new)
        for client in clients:
            client.trust(bundle(current, new))
        all_go_on(clients)
        operator.server(new)
        for index, client in enumerate(clients):
            client.show(new.sign(f"device-{index}"))
        all_go_on(clients)
        operator.trust(new)
        for client in clients:
            client.trust(bundle(new))
        former = current.sign("device-former")
        stale = ClientSecurity(TlsFiles(former.cert, former.key, new.ca), clients[0].token)
        refused_soon(address, stale, [RemoteErrorKind.UNAVAILABLE, RemoteErrorKind.CERTIFICATE])
        all_go_on(clients)
        current = new


@pytest.mark.slow
def test_broken_files_are_not_taken_over_while_many_call(
    callers: tuple[str, Operator, Authority, list[Caller]],
) -> None:
    _, operator, first, clients = callers
    all_go_on(clients)
    for name in ("tokens.yaml", "server.pem", "server.key", "clients.pem"):
        good = (operator.folder / name).read_bytes()
        for bad in (b"", b"broken", good[: len(good) // 2]):
            put(operator.folder / name, bad)
            all_go_on(clients)
        (operator.folder / name).unlink()
        all_go_on(clients)
        put(operator.folder / name, good)
        all_go_on(clients)
    operator.server(first)
    all_go_on(clients)


@pytest.mark.slow
def test_connections_are_made_without_a_pause_while_the_certificate_changes(
    callers: tuple[str, Operator, Authority, list[Caller]],
) -> None:
    """Replacing a certificate that a handshake is about to use ends a process that does not take care."""
    address, operator, first, clients = callers
    is_http = address.startswith("https:")
    host, _, port = address.removeprefix("https://").rpartition(":")
    ending = threading.Event()
    made, failures = list[int](), list[OSError]()

    def connect() -> None:
        context = ssl.create_default_context(cafile=first.ca)
        context.set_alpn_protocols(["http/1.1" if is_http else "h2"])
        assert clients[0].files.cert is not None
        context.load_cert_chain(clients[0].files.cert)
        while not ending.is_set():
            try:
                with (
                    socket.create_connection((host, int(port)), LIMIT_S) as plain,
                    context.wrap_socket(plain, server_hostname="localhost") as connection,
                ):
                    if is_http:  # of HTTP/2 it is the server that begins
                        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    made.append(len(connection.recv(1)))
            except OSError as error:
                failures.append(error)

    threads = [threading.Thread(target=connect) for _ in range(6)]
    for thread in threads:
        thread.start()
    for _ in range(8):
        operator.server(first)
        all_go_on(clients)
    ending.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sum(made) == len(made) > 50

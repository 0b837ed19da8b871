"""An HTTP proxy that is asked to CONNECT, and misbehaves on demand: what stands before many a factory's way out."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Mapping
from typing import Literal, TypeAlias

Mood: TypeAlias = Literal["forward", "forbid", "stall", "die", "noise"]


class ConnectProxy:
    """Forwards tunnels to the places that `names` has for them (`HOST:PORT` each), as a name service would.

    `asked` holds what each CONNECT asked for. `mood` holds for new tunnels: "forbid" answers 403, "stall" takes the
    request and says nothing, "die" closes the connection, "noise" answers with no HTTP. With `authorization` a request
    that does not bring this value of Proxy-Authorization is answered 407. Close it, or use it as a context manager.
    """

    def __init__(self, names: Mapping[str, str], authorization: str = "") -> None:
        self.names = dict(names)
        self.mood: Mood = "forward"
        self.asked: list[str] = []
        self._authorization = authorization
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self) -> None:
        """End every connection now."""
        with self._lock:
            for one in self._open:
                with contextlib.suppress(OSError):  # the other side may have gone first
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End every connection and thread."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def __enter__(self) -> ConnectProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            self._keep(caller)
            self._threads.append(threading.Thread(target=self._serve, args=(caller,)))
            self._threads[-1].start()

    def _keep(self, one: socket.socket) -> None:
        with self._lock:
            self._open.add(one)

    def _drop(self, one: socket.socket) -> None:
        with self._lock:
            self._open.discard(one)
        one.close()

    def _serve(self, caller: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError):
                self._answer(caller)
        finally:
            self._drop(caller)

    def _answer(self, caller: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            more = caller.recv(1)
            if not more:
                return
            head += more
        lines = head.decode("latin-1").split("\r\n")
        method, where, _ = lines[0].split(" ")
        self.asked.append(where)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        mood = self.mood
        if mood == "stall":
            while caller.recv(65536):
                pass
        elif mood == "noise":
            caller.sendall(bytes(range(256)) * 4)
        elif mood == "die":
            return
        elif self._authorization and headers.get("proxy-authorization") != self._authorization:
            caller.sendall(b"HTTP/1.1 407 Who asks?\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n")
        elif mood == "forbid" or method != "CONNECT" or where not in self.names:
            caller.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        else:
            host, _, port = self.names[where].rpartition(":")
            target = socket.create_connection((host, int(port)))
            self._keep(target)
            caller.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            try:
                _forward(caller, target)
            finally:
                self._drop(target)


def _forward(one: socket.socket, other: socket.socket) -> None:
    """Both ways, until either side ends."""
    while True:
        for ready in select.select([one, other], [], [])[0]:
            data = ready.recv(65536)
            if not data:
                return
            (other if ready is one else one).sendall(data)

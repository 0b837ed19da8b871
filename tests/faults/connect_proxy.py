"""An HTTP proxy that is asked to CONNECT, and misbehaves on demand: what stands before many a factory's way out."""

from __future__ import annotations

import select
import socket
from collections.abc import Mapping
from typing import Literal, TypeAlias

from tests.faults.accepting import Accepting

Mood: TypeAlias = Literal["forward", "forbid", "stall", "die", "noise"]


class ConnectProxy(Accepting):
    """Forwards tunnels to the places that `names` has for them (`HOST:PORT` each), as a name service would.

    `asked` holds what each CONNECT asked for. `mood` holds for new tunnels: "forbid" answers 403, "stall" takes the
    request and says nothing, "die" closes the connection, "noise" answers with no HTTP. With `authorization` a request
    that does not bring this value of Proxy-Authorization is answered 407.
    """

    def __init__(self, names: Mapping[str, str], authorization: str = "") -> None:
        self.names = dict(names)
        self.mood: Mood = "forward"
        self.asked: list[str] = []
        self._authorization = authorization
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        """Answer its CONNECT, and forward what follows."""
        try:
            self._answer(connection)
        finally:
            self.drop(connection)

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
            self.keep(target)
            caller.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            try:
                _forward(caller, target)
            finally:
                self.drop(target)


def _forward(one: socket.socket, other: socket.socket) -> None:
    """Both ways, until either side ends."""
    while True:
        for ready in select.select([one, other], [], [])[0]:
            data = ready.recv(65536)
            if not data:
                return
            (other if ready is one else one).sendall(data)

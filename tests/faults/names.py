"""A name server on loopback that knows one name, as many addresses as it is told, and counts who asks."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

_A = 1


@dataclass
class Names:
    """The addresses of `name` now, and how often somebody asked for them."""

    name: str
    port: int
    addresses: list[str]
    asked: list[str] = field(default_factory=list)

    def endpoint(self, port: int | str) -> str:
        """The servers of this name, as an agent.yaml names them."""
        return f"dns://127.0.0.1:{self.port}/{self.name}:{port}"

    def answer(self, query: bytes) -> bytes:
        """RFC 1035: the question again, and an A record for each address."""
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode())
            at += 1 + query[at]
        (kind,) = struct.unpack(">H", query[at + 1 : at + 3])
        found = self.addresses if (".".join(labels), kind) == (self.name, _A) else []
        if kind == _A:
            self.asked.append(".".join(labels))
        head = query[:2] + struct.pack(">HHHHH", 0x8580, 1, len(found), 0, 0)
        records = [b"\xc0\x0c" + struct.pack(">HHIH", _A, 1, 1, 4) + socket.inet_aton(one) for one in found]
        return head + query[12 : at + 5] + b"".join(records)


@contextmanager
def naming(addresses: Sequence[str], name: str = "cloud.example") -> Iterator[Names]:
    """Run it in a thread."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        names = Names(name, server.getsockname()[1], list(addresses))

        def run() -> None:
            while True:
                query, client = server.recvfrom(512)
                if not query:
                    return
                server.sendto(names.answer(query), client)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield names
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", ("127.0.0.1", names.port))
        thread.join()

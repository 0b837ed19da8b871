"""What raw servers of the tests have in common: connections that are accepted, and ended with the test."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TypeVar

S = TypeVar("S", bound="Accepting")


class Accepting:
    """Accepts connections on a port of loopback and has a thread `serve` each. Close it, or use it with `with`.

    What a subclass needs for that is there before it calls `__init__`.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def serve(self, connection: socket.socket) -> None:
        """Serve one connection until either side ends it; it may raise `OSError`. It stays open after that."""
        raise NotImplementedError

    def keep(self, one: socket.socket) -> None:
        """End this with the others."""
        with self._lock:
            self._open.add(one)

    def drop(self, one: socket.socket) -> None:
        """Close this now."""
        with self._lock:
            self._open.discard(one)
        one.close()

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
        for one in (self._listener, *self._open):
            one.close()

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.keep(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self.serve(connection)

"""gRPC over a network interface of choice, which no option of gRPC names: it connects to a socket here, and each of its
connections is carried on over one that is bound to the interface."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import ClassVar

from upwell.shared.config.addresses import Address
from upwell.shared.errors import ConfigError
from upwell.shared.platform.socket_connect import connect

_log = logging.getLogger(__name__)
_PEER = struct.Struct("3i")
"""`struct ucred`: the process, user and group at the other end."""

_said: dict[tuple[str, Address], str] = {}


class InterfaceRelay:
    """Carries the connections of one channel to a server. TLS, if any, is between gRPC and the server.

    The socket has no file, so that nothing is left behind by a process that is killed; a connection of another process
    than this one is closed. The constructor raises `ConfigError` where the address cannot be reached by an interface.
    """

    CONNECT_S: ClassVar[float] = 3.0
    """Time limit for a connection to the server."""

    PAUSE_S: ClassVar[float] = 0.1
    """Pause after a connection could not be taken up."""

    PIECE_BYTES: ClassVar[int] = 64 << 10
    """Most bytes that are carried at a time."""

    def __init__(self, address: Address, interface: str) -> None:
        if address.socket_path is not None or address.name_server is not None:
            raise ConfigError.at(None, f"with `interfaces` an endpoint is HOST:PORT or https://HOST, not {address}")
        self._address, self._interface = address, interface
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = False
        name = f"upwell-{secrets.token_hex(16)}"
        self.target = f"unix-abstract:{name}"
        """What gRPC is to connect to."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{name}")
        self._listener.listen()
        threading.Thread(target=self._accept, name="interface-relay", daemon=True).start()

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """The gRPC options that make TLS and the server see the address that is meant."""
        return (
            ("grpc.ssl_target_name_override", self._address.host),
            ("grpc.default_authority", self._address.authority),
        )

    def close(self) -> None:
        """End all connections. Calling it twice is harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            sockets = [self._listener, *self._open]
        for one in sockets:
            _shut(one)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:  # closed, or there are too many open files
                if self._closed:
                    return
                time.sleep(self.PAUSE_S)
                continue
            pid, _, _ = _PEER.unpack(near.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            if pid != os.getpid():
                near.close()
                continue
            try:
                threading.Thread(target=self._carry, args=(near,), name="interface-relay", daemon=True).start()
            except RuntimeError:  # no thread can be started: gRPC tries again
                near.close()

    def _carry(self, near: socket.socket) -> None:
        """Carry one connection in both directions until either side ends it."""
        with near:
            try:
                self._hold(near)
                far = connect(
                    self._address.host,
                    self._address.port,
                    time.monotonic() + self.CONNECT_S,
                    self._hold,
                    self._interface,
                )
            except OSError as error:
                self._forget(near)
                if not self._closed:
                    _say(self._interface, self._address, f"cannot be reached: {error.strerror or error}")
                return
            _say(self._interface, self._address, "")
            with far:
                far.settimeout(None)
                far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                back = threading.Thread(target=self._pump, args=(far, near), name="interface-relay", daemon=True)
                back.start()
                self._pump(near, far)
                back.join()
                self._forget(near)
                self._forget(far)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        """Carry what comes from one side to the other; the end of one is the end of both."""
        buffer = memoryview(bytearray(self.PIECE_BYTES))
        with suppress(OSError):
            while size_bytes := source.recv_into(buffer):
                sink.sendall(buffer[:size_bytes])
        _shut(source)
        _shut(sink)

    def _hold(self, one: socket.socket) -> None:
        """Note a socket that `close` is to end. Raises `OSError` if it came first."""
        with self._lock:
            if self._closed:
                raise ConnectionAbortedError("the client is closed")
            self._open.add(one)

    def _forget(self, one: socket.socket) -> None:
        with self._lock:
            self._open.discard(one)
            self._open = {other for other in self._open if other.fileno() >= 0}  # without those that did not connect


def _say(interface: str, address: Address, problem: str) -> None:
    """Log once what is wrong with an interface: gRPC will only say that its connections end."""
    before, _said[interface, address] = _said.get((interface, address), ""), problem
    if problem and problem != before:
        _log.warning("interface %s: %s %s", interface, address, problem)


def _shut(one: socket.socket) -> None:
    with suppress(OSError):  # it has ended
        one.shutdown(socket.SHUT_RDWR)

"""A TCP proxy on loopback that misbehaves on demand: what stands between agent and cloud in the fault tests.

One thread runs it. Every control returns once it is in force, and holds for connections that are open and new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

T = TypeVar("T")

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_QUEUED_S = 0.05
"""How far a throttled direction may run ahead before the sender is held back."""


@dataclass(frozen=True, eq=False)
class Fault:
    """What happens to the bytes of one direction.

    `after_bytes` and `garble_from` count, for each connection, from when the fault was set or the connection opened.
    """

    delay_s: float = 0.0
    bytes_per_s: float = math.inf
    dark: bool = False
    garble_from: int | None = None
    mask: int = 0x01
    after_bytes: int | None = None
    resets: bool = False

    def garbled(self, data: bytes, start: int) -> bytes:
        """`data`, whose first byte is number `start`, with the bits of `mask` flipped where they are to be."""
        if self.garble_from is None or start + len(data) <= self.garble_from:
            return data
        clean = max(0, self.garble_from - start)
        return data[:clean] + bytes(byte ^ self.mask for byte in data[clean:])


class Direction:
    """One way through the proxy: what is done to its bytes, and what was sent, forwarded or not."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.fault = Fault()
        self.received_bytes = 0
        self.record: bytearray | None = None

    def pass_(self) -> None:
        """Forward everything at once. A connection that was dark stays dark."""
        self._set(Fault())

    def delay(self, delay_s: float) -> None:
        """Forward each byte `delay_s` after it came."""
        self._set(Fault(delay_s=delay_s))

    def throttle(self, bytes_per_s: float) -> None:
        """Forward no more than so many bytes per second and connection."""
        self._set(Fault(bytes_per_s=bytes_per_s))

    def blackhole(self) -> None:
        """Take the bytes and forward none. A connection that lost bytes is dead for good, as if a router forgot it."""
        self._set(Fault(dark=True))

    def garble(self, from_byte: int = 0, mask: int = 0x01) -> None:
        """Flip the bits of `mask` in each byte from number `from_byte` on."""
        self._set(Fault(garble_from=from_byte, mask=mask))

    def cut_after(self, count: int) -> None:
        """Close each connection in good order (FIN) after `count` more bytes this way."""
        self._set(Fault(after_bytes=count))

    def reset_after(self, count: int) -> None:
        """Reset each connection (RST) after `count` more bytes this way."""
        self._set(Fault(after_bytes=count, resets=True))

    def note(self, data: bytes) -> None:
        """Count what was sent this way."""
        self.received_bytes += len(data)
        if self.record is not None:
            self.record += data

    def _set(self, fault: Fault) -> None:
        self._proxy.call(lambda: setattr(self, "fault", fault))


class Proxy:
    """Forwards connections from `address` to `target` (both `HOST:PORT`). Close it, or use it as a context manager.

    `up` is the way from the caller to the target, `down` the way back. With `record` both keep their bytes.
    """

    def __init__(self, target: str, *, record: bool = False) -> None:
        self._target = target.rpartition(":")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._pairs: set[_Pair] = set()
        self.open_ends: set[_End] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._is_listening = False
        self.up, self.down = Direction(self), Direction(self)
        if record:
            self.up.record, self.down.record = bytearray(), bytearray()
        self.accepted = 0
        self._socket = _bound(0)
        self.port: int = self._socket.getsockname()[1]
        self._thread.start()
        self._wait_for(self._listen())

    @property
    def address(self) -> str:
        """Where callers connect."""
        return f"127.0.0.1:{self.port}"

    @property
    def open_connections(self) -> int:
        """Connections that callers have open now."""
        return self.call(lambda: len(self._pairs))

    def retarget(self, target: str) -> None:
        """Connect to another `HOST:PORT` from now on; what is open is reset."""
        self._target = target.rpartition(":")
        self.reset()

    def cut(self) -> None:
        """Close every connection now, in good order (FIN)."""
        self.call(lambda: self._end_all(resets=False))

    def reset(self) -> None:
        """Reset every connection now (RST)."""
        self.call(lambda: self._end_all(resets=True))

    def blackhole(self) -> None:
        """Take bytes and connections and forward nothing, either way."""
        self.up.blackhole()
        self.down.blackhole()

    def refuse(self) -> None:
        """Refuse new connections and reset those that are open; the port stays ours."""
        self._wait_for(self._refuse())

    def restore(self) -> None:
        """Listen and pass everything again."""
        self.up.pass_()
        self.down.pass_()
        self._wait_for(self._listen())

    def close(self) -> None:
        """Reset what is open and end the thread. Calling it twice is harmless."""
        if self._loop.is_closed():
            return
        self.refuse()
        self._wait_for(self._settled())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._socket.close()
        self._loop.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, action: Callable[[], T]) -> T:
        """Run `action` in the proxy's thread, between two of its steps."""

        async def run() -> T:
            return action()

        return self._wait_for(run())

    def _wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _listen(self) -> None:
        if not self._is_listening:
            self._is_listening = True
            self._socket.listen(128)
            self._socket.setblocking(False)
            # Not a server of asyncio's, which loses the socket of a connection that it accepts while it is closed.
            self._loop.add_reader(self._socket, self._accept_all)

    def _accept_all(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):  # all of them, or one who has left again
            while True:
                connecting = self._loop.create_task(self._connected(self._socket.accept()[0]))
                self._connecting.add(connecting)
                connecting.add_done_callback(self._connecting.discard)

    async def _connected(self, accepted: socket.socket) -> None:
        await self._loop.connect_accepted_socket(self._accept, accepted)

    async def _refuse(self) -> None:
        if self._is_listening:
            self._is_listening = False
            self._loop.remove_reader(self._socket)
            self._socket.close()
            # Bound but not listening: callers are refused, and nobody else can take the port.
            self._socket = _bound(self.port)
        if self._connecting:
            await asyncio.wait(self._connecting)
        self._end_all(resets=True)

    def _end_all(self, *, resets: bool) -> None:
        for pair in tuple(self._pairs):
            pair.end(resets=resets)

    async def _settled(self) -> None:
        """Let attempts to connect and the ends of transports come through."""
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for one in tuple(self.open_ends):  # being accepted while the others were ended, or with bytes that nobody takes
            one.end(resets=True)
        for _ in range(3):
            await asyncio.sleep(0)

    def _accept(self) -> _End:
        self.accepted += 1
        pair = _Pair(self, self._pairs)
        host, _, port = self._target
        pair.connecting = self._loop.create_task(pair.connect(host, int(port)))
        return pair.caller


class _Pair:
    """One connection: the caller's end and the target's."""

    def __init__(self, proxy: Proxy, register: set[_Pair]) -> None:
        self.caller = _End(self, proxy.up, proxy.open_ends)
        self.target = _End(self, proxy.down, proxy.open_ends)
        self.caller.other, self.target.other = self.target, self.caller
        self.connecting: asyncio.Task[None] | None = None
        self.is_over = False
        self._register = register
        register.add(self)

    async def connect(self, host: str, port: int) -> None:
        """Open the far end and let bytes flow; where that fails the caller is reset."""
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.target, host, port)
        except OSError:
            self.end(resets=True)
        else:
            self.caller.resume()

    def end(self, *, resets: bool) -> None:
        """Close both ends."""
        self.is_over = True
        self._register.discard(self)
        for one in (self.caller, self.target):
            one.end(resets=resets)


class _End(asyncio.Protocol):
    """One end of a connection; what it receives goes to the other, as the direction's fault has it."""

    other: _End

    def __init__(self, pair: _Pair, direction: Direction, register: set[_End]) -> None:
        self._pair = pair
        self._register = register
        self._direction = direction
        self._transport: asyncio.Transport | None = None
        self._fault: Fault | None = None
        self._seen = 0
        self._held: deque[tuple[float, Callable[[], object]]] = deque()
        self._free_at_s = 0.0
        self._lost = self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._register.add(self)
        if self._pair.is_over:  # since it was accepted
            self._transport.abort()
        elif self is self._pair.caller:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._direction.note(data)
        fault = self._direction.fault
        if fault is not self._fault:
            self._fault, self._seen = fault, 0
        start, self._seen = self._seen, self._seen + len(data)
        self._lost = self._lost or fault.dark
        if self._lost:
            return
        ends = fault.after_bytes is not None and self._seen >= fault.after_bytes
        if ends and fault.after_bytes is not None:
            data = data[: max(0, fault.after_bytes - start)]
        self._forward(fault.garbled(data, start), fault)
        if ends:
            self._later(lambda: self._pair.end(resets=fault.resets))

    def eof_received(self) -> bool:
        self._ended = True
        if not self._lost:
            self._later(self.other.write_eof)
            if self.other._ended:  # asyncio leaves it open
                self._later(lambda: self._pair.end(resets=False))
        return True

    def connection_lost(self, _: Exception | None) -> None:
        self._register.discard(self)
        if not self._lost or self is self._pair.caller:
            self._later(lambda: self._pair.end(resets=False))

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def write_eof(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            with contextlib.suppress(OSError):  # reset by its peer in the meantime
                self._transport.write_eof()

    def end(self, *, resets: bool) -> None:
        if self._transport is None:
            return
        if resets:
            sock: socket.socket = self._transport.get_extra_info("socket")
            with contextlib.suppress(OSError):  # already closed by the other side
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._transport.abort()
        else:
            self._transport.close()

    def _forward(self, data: bytes, fault: Fault) -> None:
        now_s = asyncio.get_running_loop().time()
        due_s = now_s + fault.delay_s if math.isinf(fault.bytes_per_s) else max(self._free_at_s, now_s)
        for piece in _pieces(data, fault.bytes_per_s):
            due_s += len(piece) / fault.bytes_per_s
            # Never before what came earlier, though a longer delay held that back.
            self._free_at_s = due_s = max(due_s, self._free_at_s)
            self._later(partial(self.other.write, piece))
        if not math.isinf(fault.bytes_per_s) and due_s - now_s > _QUEUED_S and self._transport is not None:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_at(due_s - _QUEUED_S, self.resume)

    def _later(self, action: Callable[[], object]) -> None:
        """Do it once everything forwarded so far is through."""
        loop = asyncio.get_running_loop()
        if not self._held and self._free_at_s <= loop.time():
            action()
            return
        self._held.append((self._free_at_s, action))
        if len(self._held) == 1:
            loop.call_at(self._free_at_s, self._let_go)

    def _let_go(self) -> None:
        loop = asyncio.get_running_loop()
        while self._held and self._held[0][0] <= loop.time():
            self._held.popleft()[1]()
        if self._held:
            loop.call_at(self._held[0][0], self._let_go)


def _pieces(data: bytes, bytes_per_s: float) -> list[bytes]:
    """`data` in pieces of at most 10 ms each."""
    if math.isinf(bytes_per_s):
        return [data] if data else []
    size = max(1, int(bytes_per_s * 0.01))
    return [data[at : at + size] for at in range(0, len(data), size)]


def _bound(port: int) -> socket.socket:
    # With the protocol named, asyncio turns Nagle's algorithm off for accepted connections too.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound

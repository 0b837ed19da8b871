"""A link with the capacity of a recorded one: a TCP proxy whose way up is paced by a packet trace.

The trace is in mahimahi's format: each line is the millisecond at which one packet of 1,500 bytes may leave; it repeats
from its end. All connections share one first-in-first-out queue. What is not used of the capacity is lost.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import itertools
import socket
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

PACKET_BYTES = 1500
_TICK_S = 0.002
_QUEUE_BYTES = 64 << 10
"""So much waits in the proxy; further bytes wait with the sender, as in front of a modem."""


class Trace:
    """When packets may leave, in milliseconds from the start."""

    def __init__(self, packets_ms: Sequence[int]) -> None:
        self._packets_ms = packets_ms
        self.length_s = packets_ms[-1] / 1e3

    @classmethod
    def read(cls, path: Path) -> Trace:
        """The trace of a file with one number on each line."""
        return cls([int(line) for line in path.read_text().split()])

    def bytes_between(self, start_s: float, end_s: float) -> int:
        """Bytes that may leave in [start, end)."""
        return (self._packets_before(end_s) - self._packets_before(start_s)) * PACKET_BYTES

    def leaves_by(self, start_s: float, size_bytes: int, limit_s: float) -> bool:
        """Whether `size_bytes` that are alone on the link from `start_s` on have left by `limit_s`."""
        return self.bytes_between(start_s, limit_s) >= size_bytes

    def outages(self, until_s: float, least_s: float) -> list[tuple[float, float]]:
        """The spans before `until_s` in which no packet left for `least_s` or longer."""
        times_s = [0.0]
        for round_ in range(int(until_s / self.length_s) + 1):
            times_s += [round_ * self.length_s + one / 1e3 for one in self._packets_ms]
        return [(a, b) for a, b in itertools.pairwise(times_s) if b - a >= least_s and b <= until_s]

    def _packets_before(self, at_s: float) -> int:
        rounds, rest_s = divmod(at_s, self.length_s)
        return int(rounds) * len(self._packets_ms) + bisect.bisect_left(self._packets_ms, rest_s * 1e3)


class TraceLink:
    """Forwards connections from `address` to `target` (`HOST:PORT`), `rtt_s` / 2 each way; use as a context manager."""

    def __init__(self, target: str, trace: Trace, rtt_s: float) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._trace = trace
        self._way_s = rtt_s / 2
        self._queue: deque[tuple[asyncio.StreamWriter, bytes]] = deque()
        self._queued_bytes = 0
        self._room = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="trace link", daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def __enter__(self) -> TraceLink:
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> asyncio.Server:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        listening.bind(("127.0.0.1", 0))
        self._room.set()
        self.started_s = self._loop.time()
        self._keep(self._pump())
        return await asyncio.start_server(self._accept, sock=listening, limit=16 << 10)

    async def _close(self) -> None:
        self._server.close()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()
        for _ in range(5):  # transports end in the loop's next rounds
            await asyncio.sleep(0)

    def _keep(self, coroutine: object) -> None:
        task: asyncio.Task[None] = self._loop.create_task(coroutine)  # type: ignore[arg-type]  # always a coroutine of ours
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.append(writer)
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._writers.append(far_writer)
        self._keep(self._down(far_reader, writer))
        try:
            while data := await reader.read(PACKET_BYTES):
                await self._room.wait()
                self._queue.append((far_writer, data))
                self._queued_bytes += len(data)
                if self._queued_bytes >= _QUEUE_BYTES:
                    self._room.clear()
        except (OSError, asyncio.CancelledError):
            pass  # the end of the test, for asyncio's streams must not be told by an exception
        finally:
            self._queue.append((far_writer, b""))

    async def _pump(self) -> None:
        """Let the queue out as the trace has it."""
        done_s = 0.0
        credit_bytes = 0
        while True:
            await asyncio.sleep(_TICK_S)
            now_s = self._loop.time() - self.started_s
            credit_bytes += self._trace.bytes_between(done_s, now_s)
            done_s = now_s
            while self._queue and credit_bytes >= len(self._queue[0][1]):
                writer, data = self._queue.popleft()
                credit_bytes -= len(data)
                self._queued_bytes -= len(data)
                self._loop.call_later(self._way_s, self._write, writer, data)
            credit_bytes = min(credit_bytes, PACKET_BYTES) if self._queue else 0
            if self._queued_bytes < _QUEUE_BYTES:
                self._room.set()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(64 << 10):
                self._loop.call_later(self._way_s, self._write, writer, data)
        self._loop.call_later(self._way_s, self._write, writer, b"")

    def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if writer.is_closing():
            return
        if data:
            writer.write(data)
        else:
            writer.close()

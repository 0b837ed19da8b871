"""Several processes that share their ports: started together, restarted one by one, drained together."""

from __future__ import annotations

import errno
import logging
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn

from rich.console import Console

from upwell.cloud.config import CloudConfig
from upwell.cloud.engines.named_calls import model_in
from upwell.cloud.observe.metrics import WorkerMetrics, serve_metrics
from upwell.cloud.workers.calls_to_all_workers import Changes, GatheredStatistics
from upwell.cloud.workers.startup_banner import Listening, ModelLine, announce
from upwell.cloud.workers.worker_deaths import FatalVersions, Restarts, Silence
from upwell.cloud.workers.worker_messages import (
    HEARTBEAT_S,
    Alive,
    Ask,
    AskStatistics,
    Channel,
    Counted,
    Done,
    Drain,
    Failed,
    Listen,
    Loaded,
    LoadsNow,
    Message,
    Serving,
    Statistics,
    encode,
)
from upwell.shared.config.addresses import Address, parse_address
from upwell.shared.errors import ConfigError, UpwellError
from upwell.shared.oip.grpc.server.server import check_free
from upwell.shared.platform.process import StopSignals, Systemd, stop_signals

_MOST_UNSENT_BYTES = 64 << 20
"""A worker that leaves so much unread is stuck, and is treated as dead."""

_ENDING_S = 5.0
_START_AGAIN_S = 5.0
_MOST_CRASH_BYTES = 1 << 20

_DRAIN_MARGIN_S = 10.0
"""Added to the drain time, for what closes after it."""

log = logging.getLogger("upwell.cloud")


class Phase(Enum):
    """The state of a worker."""

    LOADING = "loading"
    LOADED = "loaded"
    SERVING = "serving"


class WorkerHandle:
    """A running worker, `number` counting from 1. Its socket closes when the process ends."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.phase = Phase.LOADING
        self.silence = Silence()
        self.serving_since_s = 0.0
        self.failure = ""
        """What it said of why it cannot serve, or why it was killed."""
        self.crashed_in: tuple[str, str] | None = None
        """The model and version that it was calling when it crashed, once it has ended."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.channel = Channel(ours)
        self._unsent = bytearray()
        self._crash = -1  # a file in memory for the traceback of a crash
        # The same interpreter and the same modules: a plain `-c` would put the current folder first on the path.
        program = f"import sys; sys.path[:] = {sys.path!r}; from upwell.cloud.workers.worker_child import main; main()"
        # The supervisor tells a worker over the socket when to end. Signals of a terminal or a service manager reach
        # the worker too, and one that came a moment later would kill it with requests in progress; so they are blocked.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals())
        try:
            self._crash = os.memfd_create("crash")
            passed = (theirs.fileno(), self._crash)
            self._process = subprocess.Popen(  # noqa: S603 (our own interpreter and code)
                [sys.executable, "-c", program, *map(str, passed)], pass_fds=passed, stdin=subprocess.DEVNULL
            )
        except BaseException:  # whatever keeps it from starting, the files are closed
            ours.close()
            if self._crash >= 0:
                os.close(self._crash)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._process.pid

    @property
    def events(self) -> int:
        """What to wait for at its socket."""
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)

    def tell(self, messages: Sequence[Message]) -> None:
        """Send messages, what the socket does not take now with later calls of `send`.

        Waiting for the worker here could be for ever: it may be sending itself, and wait until that is read.
        """
        for message in messages:
            self._unsent += encode(message)
        self.send()

    def send(self) -> None:
        """Send what the socket takes. A worker that is gone or stuck is killed, and its socket then closes."""
        try:
            while self._unsent:
                del self._unsent[: self.channel.socket.send(self._unsent)]
        except BlockingIOError:
            if len(self._unsent) > _MOST_UNSENT_BYTES:
                self.kill()
        except OSError:
            self._unsent.clear()
            self.kill()

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()

    def end(self) -> str:
        """After its socket has closed: wait for the process, and say how it ended; "" if normally."""
        self.channel.close()
        try:
            code = self._process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        if self._crash >= 0:  # else this was called before, by a signal during the start
            self.crashed_in = model_in(os.pread(self._crash, _MOST_CRASH_BYTES, 0).decode(errors="replace"))
            os.close(self._crash)
            self._crash = -1
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit status {code}" if code else ""


class WorkersFailed(UpwellError):
    """The workers cannot serve: one ended before it was ready, or keeps dying."""


def supervise(config: CloudConfig, console: Console) -> None:
    """Run `serve.workers` workers until one of `stop_signals`, then let them drain, and return when all have ended.

    Raises `ConfigError`, and `WorkersFailed`; exits with 1 if requests were lost in the drain.
    """
    for device in {config.defaults.device, *(config.settings(name).device for name in config.models)} - {"cpu"}:
        log.warning("each of the %d workers loads its models onto device %s", config.serve.processes, device)
    ports, web_ports = reserve(config.serve.listen), reserve(config.serve.listen_http)
    try:
        _Supervisor(config, console, ports, web_ports).run()
    finally:
        ports.close()
        web_ports.close()


class _Supervisor:
    """One thread that waits for workers, signals and timers, and never blocks on a worker for long."""

    def __init__(self, config: CloudConfig, console: Console, ports: Reserved, web_ports: Reserved) -> None:
        self._counted = WorkerMetrics()
        page = serve_metrics(config.serve.metrics, self._counted.read) if config.serve.metrics else ""
        self._listening = Listening(ports.addresses, web_ports.addresses, page)
        serve = config.serve.model_copy(update={"listen": ports.addresses, "listen_http": web_ports.addresses})
        self._config: Mapping[str, Any] = config.model_copy(update={"serve": serve}).as_written()
        self._count, self._drain_s = serve.processes, serve.drain
        self._console = console
        self._systemd = Systemd.of_environment()
        self._worker_handles: dict[int, WorkerHandle] = {}
        self._restarts = dict.fromkeys(range(1, self._count + 1), Restarts())
        self._start_at_s: dict[int, float] = {}
        self._fatal = FatalVersions()
        self._changes = Changes(lambda number, message: self._worker_handles[number].tell([message]))
        self._statistics = GatheredStatistics(lambda number, message: self._worker_handles[number].tell([message]))
        self._selector = selectors.DefaultSelector()
        self._models: tuple[ModelLine, ...] = ()
        self._announced = False
        self._drain_until_s: float | None = None
        self._ping_at_s = math.inf
        self._check_at_s = 0.0
        self._failure: UpwellError | None = None
        self._lost = False
        self._stop = StopSignals()

    def run(self) -> None:
        """Run until all workers have ended."""
        self._selector.register(self._stop, selectors.EVENT_READ, None)
        try:
            for number in range(1, self._count + 1):
                self._start(number)
            while self._worker_handles or self._drain_until_s is None:
                self._step()
        finally:
            for worker_handle in self._worker_handles.values():
                worker_handle.kill()
            for worker_handle in self._worker_handles.values():
                worker_handle.end()
            self._stop.restore_default()
        if self._failure is not None:
            raise self._failure
        if self._lost:
            self._console.print("error: requests were lost in the drain", markup=False)
            raise SystemExit(1)

    def _step(self) -> None:
        """Wait for the next event and handle it."""
        now_s = time.monotonic()
        until_s = min([*self._start_at_s.values(), self._drain_until_s or math.inf, self._ping_at_s, self._check_at_s])
        for one in self._worker_handles.values():
            self._selector.modify(one.channel.socket, one.events, one)
        for key, event in self._selector.select(max(0.0, until_s - now_s)):
            if key.data is None:
                self._on_signal(self._stop.receive(0.0))
                continue
            if event & selectors.EVENT_WRITE:
                key.data.send()
            if event & selectors.EVENT_READ:
                self._on_worker(key.data)
        self._on_time(time.monotonic())

    def _on_signal(self, number: signal.Signals | None) -> None:
        if number is None:
            return
        if self._drain_until_s is None and self._announced:
            self._console.print("draining", markup=False)
            self._drain()
        else:
            self._end_at_once(number)

    def _on_worker(self, worker_handle: WorkerHandle) -> None:
        messages = worker_handle.channel.receive()
        if messages is None:
            self._on_death(worker_handle)
            return
        worker_handle.silence.checks = 0
        for message in messages:
            self._on_message(worker_handle, message)

    def _on_message(self, worker_handle: WorkerHandle, message: Message) -> None:
        match message:
            case Loaded(models):
                worker_handle.phase = Phase.LOADED
                self._on_loaded(worker_handle, models)
            case Serving():
                worker_handle.phase, worker_handle.serving_since_s = Phase.SERVING, time.monotonic()
                log.info("worker %d (process %d) serves", worker_handle.number, worker_handle.pid)
                self._on_serving()
            case Alive():
                pass
            case LoadsNow(model, version):
                if worker_handle.silence.loading is not None:
                    is_start = worker_handle.phase is Phase.LOADING
                    self._fatal.was_loaded(worker_handle.silence.loading, is_start=is_start)
                worker_handle.silence.loading = (model, version) if model else None
            case Ask():
                self._changes.ask(worker_handle.number, message, time.monotonic())
            case Done():
                self._changes.done(worker_handle.number, message)
            case AskStatistics():
                serving = [one.number for one in self._worker_handles.values() if one.phase is Phase.SERVING]
                self._statistics.ask(worker_handle.number, message, serving)
            case Statistics():
                self._statistics.told(worker_handle.number, message)
            case Counted(tables):
                self._counted.update(worker_handle.number, tables)
            case Failed(text, is_config):
                failure = ConfigError.at(None, text) if is_config else WorkersFailed(text)
                worker_handle.failure = text
                if self._announced:
                    log.error("worker %d cannot serve: %s", worker_handle.number, text)
                else:
                    self._failure = self._failure or failure

    def _on_loaded(self, worker_handle: WorkerHandle, models: tuple[ModelLine, ...]) -> None:
        if self._announced or any(one.phase is Phase.SERVING for one in self._worker_handles.values()):
            worker_handle.tell([Listen()])  # the others have been told
            return
        self._models = models
        if len(self._worker_handles) == self._count and all(
            one.phase is Phase.LOADED for one in self._worker_handles.values()
        ):
            offered: dict[str, tuple[str, ...]] = {}
            for line in models:
                offered[line.name] = (*offered.get(line.name, ()), line.version)
            self._changes.note(offered)
            for one in self._worker_handles.values():
                one.tell([Listen()])

    def _on_serving(self) -> None:
        if self._announced or any(one.phase is not Phase.SERVING for one in self._worker_handles.values()):
            return
        self._announced = True
        announce(self._console, self._models, self._listening, self._count)
        self._systemd.ready()
        self._ping_at_s = self._next_ping_s()

    def _on_death(self, worker_handle: WorkerHandle) -> None:
        self._selector.unregister(worker_handle.channel.socket)
        del self._worker_handles[worker_handle.number]
        self._changes.gone(worker_handle.number, worker_handle.silence.loading)
        self._statistics.gone(worker_handle.number)
        self._counted.ended(worker_handle.number)
        how = worker_handle.end()
        if self._drain_until_s is not None:
            self._lost |= bool(how) and worker_handle.phase is Phase.SERVING
            return
        blamed = worker_handle.crashed_in or worker_handle.silence.loading
        if not self._announced and blamed is None:
            self._fail(f"worker {worker_handle.number} ended before it served: {how or 'exit status 0'}")
            return
        now_s = time.monotonic()
        served_s = now_s - worker_handle.serving_since_s if worker_handle.phase is Phase.SERVING else 0.0
        self._counted.died(*(blamed or ("", "")))
        why, left_out = "", self._fatal.left_out
        if blamed is not None:
            is_load = blamed == worker_handle.silence.loading
            why = self._fatal.died_loading(blamed) if is_load else self._fatal.died_running(blamed, now_s)
        if self._fatal.left_out != left_out:  # none will die of that again
            self._restarts = dict.fromkeys(self._restarts, Restarts())
        restarts = self._restarts[worker_handle.number] = self._restarts[worker_handle.number].died(served_s)
        died = f"worker {worker_handle.number} (process {worker_handle.pid}) died: {how or 'exit status 0'}"
        log.error("%s%s", died, f"; {why}" if why else "")
        if restarts.is_hopeless and self._is_over:
            last = worker_handle.failure or how
            self._fail(
                f"worker {worker_handle.number} has died {restarts.deaths} times in a row, the last time: {last}"
            )
        else:
            self._start_at_s[worker_handle.number] = now_s + restarts.wait_s

    @property
    def _is_over(self) -> bool:
        """Whether nothing will serve: none has yet, or none does and all are hopeless."""
        serves = any(worker_handle.phase is Phase.SERVING for worker_handle in self._worker_handles.values())
        return not self._announced or (not serves and all(one.is_hopeless for one in self._restarts.values()))

    def _on_time(self, now_s: float) -> None:
        if self._drain_until_s is not None and now_s >= self._drain_until_s:
            self._drain_until_s = math.inf
            for worker_handle in self._worker_handles.values():
                worker_handle.kill()
        for number in [number for number, at_s in self._start_at_s.items() if now_s >= at_s]:
            del self._start_at_s[number]
            self._start(number)
        if now_s >= self._check_at_s:
            self._check_at_s = now_s + HEARTBEAT_S
            self._changes.answer_late(now_s)
            self._kill_hung()
        if now_s >= self._ping_at_s:
            if any(worker_handle.phase is Phase.SERVING for worker_handle in self._worker_handles.values()):
                self._systemd.ping()
            self._ping_at_s = self._next_ping_s()

    def _kill_hung(self) -> None:
        """Kill the workers that hang; as one that died, each is then started again."""
        for one in self._worker_handles.values():
            if self._drain_until_s is None and one.silence.check(is_starting=one.phase is Phase.LOADING):
                one.failure = f"no sign of life for {one.silence.checks * HEARTBEAT_S:.0f} s"
                log.error("worker %d (process %d) hangs and is killed: %s", one.number, one.pid, one.failure)
                one.kill()

    def _start(self, number: int) -> None:
        try:
            worker_handle = self._worker_handles[number] = WorkerHandle(number)
        except OSError as error:  # no memory, processes or files are left; the others go on
            text = f"worker {number} cannot be started: {error.strerror}"
            if not self._announced:
                raise WorkersFailed(text) from None
            log.error("%s; this is tried again in %.0f s", text, _START_AGAIN_S)
            self._start_at_s[number] = time.monotonic() + _START_AGAIN_S
            return
        self._selector.register(worker_handle.channel.socket, selectors.EVENT_READ, worker_handle)
        worker_handle.tell(self._changes.start(number, self._config, self._fatal.left_out))

    def _fail(self, text: str) -> None:
        """End the service, after the running workers have answered what was accepted."""
        self._failure = self._failure or WorkersFailed(text)
        self._drain()

    def _drain(self) -> None:
        self._systemd.stopping()
        self._drain_until_s = time.monotonic() + self._drain_s + _DRAIN_MARGIN_S
        self._start_at_s.clear()
        for worker_handle in self._worker_handles.values():
            if worker_handle.phase is Phase.LOADING or not self._announced:
                worker_handle.kill()  # it has accepted nothing
            else:
                worker_handle.tell([Drain()])

    def _next_ping_s(self) -> float:
        interval_s = self._systemd.interval_s
        return math.inf if interval_s is None else time.monotonic() + interval_s

    def _end_at_once(self, number: signal.Signals) -> NoReturn:
        """End as the signal does by default, and kill the workers."""
        for worker_handle in self._worker_handles.values():
            worker_handle.kill()
        for worker_handle in self._worker_handles.values():
            worker_handle.end()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        raise SystemExit(128 + number)


@dataclass(frozen=True)
class Reserved:
    """Addresses with their real ports, and the sockets that hold them, which are bound and never listen."""

    addresses: tuple[str, ...]
    sockets: tuple[socket.socket, ...]

    def close(self) -> None:
        """Release the ports."""
        for one in self.sockets:
            one.close()


def reserve(listen: Sequence[str]) -> Reserved:
    """Bind every address of `listen` (port 0: any free one), for processes of this user to listen on.

    Linux spreads new connections over the sockets that listen on a port with SO_REUSEPORT, by a hash of both addresses,
    and lets only processes of one user share a port. Raises `ConfigError` if an address is in use, is a unix socket
    (which cannot be shared like that), or if this is not Linux.
    """
    if sys.platform != "linux":
        raise ConfigError.at(None, "only Linux lets several processes share a port; write `workers: 1`")
    sockets: list[socket.socket] = []
    addresses: list[str] = []
    try:
        for text in listen:
            address = parse_address(text)
            if address.socket_path is not None:
                raise ConfigError.at(
                    None, f"several workers cannot share {text}; listen on HOST:PORT, or write `workers: 1`"
                )
            check_free(address)
            sockets.append(_bound(address))
            addresses.append(str(Address(address.host, sockets[-1].getsockname()[1])))
    except BaseException:  # whatever it is, the ports are released
        Reserved((), tuple(sockets)).close()
        raise
    return Reserved(tuple(addresses), tuple(sockets))


def _bound(address: Address) -> socket.socket:
    where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    holder = socket.socket(*where[:3])
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            holder.bind(where[4])
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            # Old connections of a service that did not share its ports are still in TIME_WAIT. With this option the
            # port is ours despite them, but another program could take it the same way until the workers listen: so
            # only if needed.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(where[4])
    except OSError as error:
        holder.close()
        raise ConfigError.at(None, f"cannot listen on {address}: {error.strerror or error}") from None
    return holder

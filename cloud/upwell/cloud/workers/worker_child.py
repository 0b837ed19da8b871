"""One of several processes that share the service's ports, directed by the supervisor."""

from __future__ import annotations

import faulthandler
import logging
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial

from upwell.cloud.config import CloudConfig
from upwell.cloud.repository.model_folders import ModelFolder
from upwell.cloud.service.model_repository import ModelRepository
from upwell.cloud.workers.calls_to_all_workers import SharedIntrospection
from upwell.cloud.workers.serving_process import Restored, ServingProcess, end, finish
from upwell.cloud.workers.worker_messages import (
    HEARTBEAT_S,
    Alive,
    Ask,
    Change,
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
    StartWorker,
    Statistics,
    TellStatistics,
    WorkerReply,
    error_from_wire,
    error_to_wire,
)
from upwell.shared.errors import ConfigError, NotLoaded, Unavailable, UpwellError
from upwell.shared.oip.grpc.fastpath.switch import switch_on
from upwell.shared.oip.grpc.server.triton_extensions import AS_CONFIGURED, IndexEntry, LoadSettings
from upwell.shared.platform.background_thread import BackgroundThread
from upwell.shared.telemetry.logs import set_up_logs

log = logging.getLogger("upwell.cloud")


class SharedRepository:
    """The `Repository` of a worker: `own` is this worker's, `send` sends a message to the supervisor.

    Whichever worker is asked, all of them make the change: the supervisor makes one at a time, and answers when every
    worker has made it.
    """

    def __init__(self, own: ModelRepository, send: Callable[[Message], None]) -> None:
        self._own = own
        self._send = send
        self._lock = threading.Lock()
        self._count = 0
        self._waiting: dict[int, Future[None]] = {}

    def index(self) -> Sequence[IndexEntry]:
        """See `Repository.index`: the state of this worker."""
        return self._own.index()

    def load(self, model: str, settings: LoadSettings = AS_CONFIGURED) -> None:
        """See `Repository.load`. It fails if it fails in any worker."""
        self._ask(model, settings, unload=False)

    def unload(self, model: str) -> None:
        """See `Repository.unload`."""
        self._ask(model, AS_CONFIGURED, unload=True)

    def answered(self, answer: WorkerReply) -> None:
        """Handle the supervisor's reply to a change that this worker asked for."""
        with self._lock:
            future = self._waiting.pop(answer.id, None)
        if future is None:
            return
        if answer.error is None:
            future.set_result(None)
        else:
            future.set_exception(error_from_wire(answer.error))

    def close(self) -> None:
        """Fail the calls that still wait, since nobody will answer them."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(Unavailable("the service is draining and no longer loads or unloads models"))

    def make_changes(self, changes: queue.SimpleQueue[Change]) -> None:
        """Make the changes that the supervisor sends, one after the other, for ever; runs in a thread."""
        while True:
            change = changes.get()
            self._send(self._made(change))

    def _ask(self, model: str, settings: LoadSettings, *, unload: bool) -> None:
        with self._own.place():
            future: Future[None] = Future()
            with self._lock:
                self._count += 1
                number = self._count
                self._waiting[number] = future
            self._send(Ask(number, model, unload, settings))
            future.result()

    def _made(self, change: Change) -> Done:
        error: BaseException | None = None
        try:
            if change.unload:
                self._own.make_unload(change.model)
            else:
                self._own.make_load(change.model, change.settings)
        except UpwellError as refused:
            error = refused
        except Exception as failed:  # the caller gets the error, and the worker goes on
            log.exception("model %s could not be loaded or unloaded", change.model)
            error = failed
        happened = error is None or isinstance(error, NotLoaded)
        versions = self._own.versions(change.model) if happened else ()
        wire = None if error is None else error_to_wire(error)
        return Done(change.id, wire, versions, self._own.settings_of(change.model))


@contextmanager
def trying(send: Callable[[Message], None], folder: ModelFolder) -> Iterator[None]:
    """Tell the supervisor what is being loaded: an import or a compiler may stop all other threads, and a model may
    end the process."""
    send(LoadsNow(*folder.key))
    try:
        yield
    finally:
        send(LoadsNow())


def _beat(send: Callable[[Message], None]) -> None:
    with suppress(OSError):  # the supervisor has ended, and so will this process
        while True:
            send(Alive())
            time.sleep(HEARTBEAT_S)


def main() -> None:
    """Serve as directed by the supervisor over a socket; the arguments are its descriptor, and that of a file for the
    traceback of a crash."""
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    channel.socket.set_inheritable(False)  # a child that outlived this process would hide its end from the supervisor
    os.set_inheritable(crash := int(sys.argv[2]), False)
    faulthandler.enable(crash)
    orders = _Orders(channel)
    start = orders.start.get()
    config = CloudConfig.model_validate(start.config)
    console = set_up_logs(config.serve.log, worker=start.number)
    if config.serve.fast_path == "auto":
        switch_on()
    try:
        restored = Restored(frozenset(start.unloaded), start.versions, start.settings, frozenset(start.fatal))
        process = ServingProcess(
            config, restored=restored, trying=partial(trying, channel.send), on_device_lost=orders.drain.set
        )
        repository = orders.repository = SharedRepository(process.repository, channel.send)
        introspection = orders.introspection = SharedIntrospection(process.introspection, channel.send)
        BackgroundThread("repository-changes", partial(repository.make_changes, orders.changes)).start()
        channel.send(Loaded(tuple(process.models)))
        BackgroundThread("heartbeat", partial(_beat, channel.send)).start()
        orders.listen.wait()
        process.start(repository, introspection, shares_ports=True)
        process.telemetry.report(lambda tables: channel.send(Counted(tables)))
    except UpwellError as error:
        channel.send(Failed(str(error), isinstance(error, ConfigError)))
        end(1)
    channel.send(Serving())
    orders.drain.wait()
    finish(process, console, drained=repository.close)


class _Orders:
    """The supervisor's messages so far. If it ends, so does this process: nothing would restart it or free the port."""

    def __init__(self, channel: Channel) -> None:
        self.start: queue.SimpleQueue[StartWorker] = queue.SimpleQueue()
        self.changes: queue.SimpleQueue[Change] = queue.SimpleQueue()
        self.listen = threading.Event()
        self.drain = threading.Event()
        self.repository: SharedRepository | None = None
        self.introspection: SharedIntrospection | None = None
        self._channel = channel
        BackgroundThread("orders", self._run).start()

    def _run(self) -> None:
        while (messages := self._channel.receive()) is not None:
            for message in messages:
                match message:
                    case StartWorker():
                        self.start.put(message)
                    case Listen():
                        self.listen.set()
                    case Change():
                        self.changes.put(message)
                    case WorkerReply() if self.repository is not None:
                        self.repository.answered(message)
                    case TellStatistics() if self.introspection is not None:
                        self.introspection.tell(message)
                    case Statistics() if self.introspection is not None:
                        self.introspection.answered(message)
                    case Drain():
                        self.drain.set()
        end(1)

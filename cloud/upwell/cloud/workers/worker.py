"""One of several processes that share the service's ports: it does what its supervisor tells it."""

from __future__ import annotations

import logging
import os
import queue
import socket
import sys
import threading
from functools import partial
from typing import NoReturn

from upwell.cloud.config import CloudConfig
from upwell.cloud.workers.messages import (
    Change,
    Channel,
    Counted,
    Drain,
    Failed,
    Listen,
    Loaded,
    Serving,
    StartWorker,
    Statistics,
    TellStatistics,
    WorkerReply,
)
from upwell.cloud.workers.process import BROKEN_OFF, Restored, ServingProcess
from upwell.cloud.workers.repository import SharedRepository
from upwell.cloud.workers.statistics import SharedIntrospection
from upwell.shared.errors import ConfigError, UpwellError
from upwell.shared.oip.grpc.fastpath.switch import switch_on
from upwell.shared.platform.background_thread import BackgroundThread
from upwell.shared.telemetry.logs import set_up_logs


def main() -> None:
    """Serve as the supervisor says at the other end of the socket whose descriptor is the argument."""
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    orders = _Orders(channel)
    start = orders.start.get()
    config = CloudConfig.model_validate(start.config)
    console = set_up_logs(config.serve.log, worker=start.number)
    if config.serve.fast_path == "auto":
        switch_on()
    try:
        process = ServingProcess(config, restored=Restored(frozenset(start.unloaded), start.versions))
        repository = orders.repository = SharedRepository(process.repository, channel.send)
        introspection = orders.introspection = SharedIntrospection(process.introspection, channel.send)
        BackgroundThread("repository-changes", partial(repository.make_changes, orders.changes)).start()
        channel.send(Loaded(tuple(process.models)))
        orders.listen.wait()
        process.start(repository, introspection, shares_ports=True)
        process.telemetry.report(lambda tables: channel.send(Counted(tables)))
    except UpwellError as error:
        channel.send(Failed(str(error), isinstance(error, ConfigError)))
        _end(1)
    channel.send(Serving())
    orders.drain.wait()
    in_time = process.drain()
    repository.close()
    if not in_time:
        console.print(BROKEN_OFF, markup=False)
        _end(1)


class _Orders:
    """What the supervisor has said so far. Its end is ours: nobody would restart us, or let the port go."""

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
        _end(1)


def _end(code: int) -> NoReturn:
    """End without waiting for threads, however long they take."""
    logging.shutdown()
    os._exit(code)

"""What several workers have counted of their requests, added up for whoever asks one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TookTooLong
from dataclasses import dataclass

from upwell.cloud.workers.messages import AskStatistics, Message, Statistics, TellStatistics
from upwell.shared.errors import Unavailable
from upwell.shared.oip.introspection import Introspection, ModelConfig, ServerSettings
from upwell.shared.oip.statistics import ModelStatistics, added

LIMIT_S = 5.0
"""So long a caller waits for the slowest worker."""


@dataclass
class _Gathering:
    """Who asked, and which workers have not told yet."""

    asker: int
    ask_id: int
    waiting: set[int]


class GatheredStatistics:
    """The supervisor's part: asks every worker. What one told counts on when it has died, so no count ever falls.

    `tell` sends a message to the worker of a number. Used by one thread.
    """

    def __init__(self, tell: Callable[[int, Message], None]) -> None:
        self._tell = tell
        self._count = 0
        self._open: dict[int, _Gathering] = {}
        self._latest: dict[int, Sequence[ModelStatistics]] = {}
        self._former: Sequence[ModelStatistics] = ()

    def ask(self, number: int, ask: AskStatistics, workers: Sequence[int]) -> None:
        """A worker asks; `workers` are those that serve."""
        self._count += 1
        self._open[self._count] = _Gathering(number, ask.id, set(workers))
        for worker in workers:
            self._tell(worker, TellStatistics(self._count))

    def told(self, number: int, statistics: Statistics) -> None:
        """A worker has told what it counted."""
        self._latest[number] = statistics.models
        if statistics.id in self._open:
            self._open[statistics.id].waiting.discard(number)
        self._answer()

    def gone(self, number: int) -> None:
        """A worker has died: nobody waits for it."""
        self._former = added([self._former, self._latest.pop(number, ())])
        self._open = {key: one for key, one in self._open.items() if one.asker != number}
        for one in self._open.values():
            one.waiting.discard(number)
        self._answer()

    def _answer(self) -> None:
        for key, one in list(self._open.items()):
            if not one.waiting:
                del self._open[key]
                self._tell(one.asker, Statistics(one.ask_id, tuple(added([self._former, *self._latest.values()]))))


class SharedIntrospection:
    """The `Introspection` of a worker: `own` is what this worker knows, `send` says something to the supervisor."""

    def __init__(self, own: Introspection, send: Callable[[Message], None]) -> None:
        self._own = own
        self._send = send
        self._lock = threading.Lock()
        self._count = 0
        self._waiting: dict[int, Future[tuple[ModelStatistics, ...]]] = {}

    def config(self, model: str, version: str = "") -> ModelConfig:
        """See `Introspection.config`."""
        return self._own.config(model, version)

    def settings(self) -> ServerSettings:
        """See `Introspection.settings`."""
        return self._own.settings()

    def statistics(self, model: str = "", version: str = "") -> Sequence[ModelStatistics]:
        """See `Introspection.statistics`: of all workers together. Raises `Unavailable` where one does not answer."""
        wanted = {(one.model, one.version) for one in self._own.statistics(model, version)}
        with self._lock:
            self._count += 1
            number, future = self._count, Future[tuple[ModelStatistics, ...]]()
            self._waiting[number] = future
        self._send(AskStatistics(number))
        try:
            every = future.result(LIMIT_S)
        except TookTooLong:
            raise Unavailable("another worker does not say what it has counted; try again") from None
        finally:
            with self._lock:
                self._waiting.pop(number, None)
        return [one for one in every if (one.model, one.version) in wanted]

    def tell(self, order: TellStatistics) -> None:
        """The supervisor wants to know what this worker has counted."""
        self._send(Statistics(order.id, tuple(self._own.statistics())))

    def answered(self, statistics: Statistics) -> None:
        """The supervisor says what all have counted."""
        with self._lock:
            future = self._waiting.get(statistics.id)
        if future is not None and not future.done():
            future.set_result(statistics.models)

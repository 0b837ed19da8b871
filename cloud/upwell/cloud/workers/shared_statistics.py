"""The request statistics of several workers, added up when a caller asks one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TookTooLong
from dataclasses import dataclass

from upwell.cloud.workers.worker_messages import AskStatistics, Message, Statistics, TellStatistics
from upwell.shared.errors import Unavailable
from upwell.shared.oip.introspection import Introspection, ModelConfig, ServerSettings
from upwell.shared.oip.model_statistics import ModelStatistics, added

LIMIT_S = 5.0
"""How long a caller waits for the slowest worker."""


@dataclass
class _Gathering:
    """The worker that asked, and the workers that have not replied yet."""

    asker: int
    ask_id: int
    waiting: set[int]


class GatheredStatistics:
    """The supervisor's part: asks every worker. Counts of a worker that died are kept, so no sum ever falls.

    `tell` sends a message to the worker of a number. Not thread-safe.
    """

    def __init__(self, tell: Callable[[int, Message], None]) -> None:
        self._tell = tell
        self._count = 0
        self._open: dict[int, _Gathering] = {}
        self._latest: dict[int, Sequence[ModelStatistics]] = {}
        self._former: Sequence[ModelStatistics] = ()

    def ask(self, number: int, ask: AskStatistics, workers: Sequence[int]) -> None:
        """Handle a question of a worker; `workers` are those that serve."""
        self._count += 1
        self._open[self._count] = _Gathering(number, ask.id, set(workers))
        for worker in workers:
            self._tell(worker, TellStatistics(self._count))

    def told(self, number: int, statistics: Statistics) -> None:
        """Handle a worker's statistics."""
        self._latest[number] = statistics.models
        if statistics.id in self._open:
            self._open[statistics.id].waiting.discard(number)
        self._answer()

    def gone(self, number: int) -> None:
        """Forget a worker that died, so that nobody waits for it."""
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
    """The `Introspection` of a worker: `own` answers for this worker, `send` sends a message to the supervisor."""

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
        """See `Introspection.statistics`: for all workers together. Raises `Unavailable` if one does not reply."""
        wanted = {(one.model, one.version) for one in self._own.statistics(model, version)}
        with self._lock:
            self._count += 1
            number, future = self._count, Future[tuple[ModelStatistics, ...]]()
            self._waiting[number] = future
        self._send(AskStatistics(number))
        try:
            every = future.result(LIMIT_S)
        except TookTooLong:
            raise Unavailable("another worker did not report its statistics; try again") from None
        finally:
            with self._lock:
                self._waiting.pop(number, None)
        return [one for one in every if (one.model, one.version) in wanted]

    def tell(self, order: TellStatistics) -> None:
        """Send this worker's statistics to the supervisor."""
        self._send(Statistics(order.id, tuple(self._own.statistics())))

    def answered(self, statistics: Statistics) -> None:
        """Handle the sum of all workers' statistics."""
        with self._lock:
            future = self._waiting.get(statistics.id)
        if future is not None and not future.done():
            future.set_result(statistics.models)

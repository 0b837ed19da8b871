"""Calls that concern all workers: loads and unloads, made in each before the caller is answered, and statistics."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TookTooLong
from dataclasses import dataclass

from upwell.cloud.workers.worker_messages import (
    Ask,
    AskStatistics,
    Change,
    Done,
    Message,
    StartWorker,
    Statistics,
    TellStatistics,
    WorkerReply,
)
from upwell.shared.errors import Unavailable
from upwell.shared.oip.grpc.server.triton_extensions import AS_CONFIGURED, LoadSettings
from upwell.shared.oip.introspection import Introspection, ModelConfig, ServerSettings
from upwell.shared.oip.model_statistics import ModelStatistics, added

Tell = Callable[[int, Message], None]
"""Sends a message to the worker of a number."""

_NOBODY = -1

CHANGE_LIMIT_S = 600.0
"""How long a caller waits for a load or unload, which goes on afterwards. A hung worker is noticed much earlier; this
is for a load that takes long, or never ends."""


@dataclass
class _CurrentChange:
    """One change: the worker that asked for it, until when that waits, the workers that have not made it yet, and
    whether one died while it loaded the model."""

    change: Change
    asker: int
    ask_id: int
    until_s: float
    waiting: set[int]
    error: tuple[str, str] | None = None
    is_deadly: bool = False


class Changes:
    """Loads and unloads at the supervisor: one at a time goes to all workers, and is remembered for later workers.

    Not thread-safe. Time is an argument.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._queue: deque[tuple[int, Ask, float]] = deque()
        self._current: _CurrentChange | None = None
        self._count = 0
        self._unloaded: set[str] = set()
        self._versions: dict[str, tuple[str, ...]] = {}
        self._settings: dict[str, LoadSettings] = {}
        self._workers: set[int] = set()

    def note(self, versions: Mapping[str, tuple[str, ...]]) -> None:
        """Record the versions that were loaded at the start."""
        self._versions.update(versions)

    def start(
        self, number: int, config: Mapping[str, object], fatal: tuple[tuple[str, str], ...] = ()
    ) -> list[Message]:
        """The first messages for a new worker, which bring it up to date, including a change in progress, unless that
        load has ended a worker and its model is among the `fatal` ones."""
        self._workers.add(number)
        versions = dict(self._versions) if self._versions else None
        first: list[Message] = [
            StartWorker(number, config, tuple(sorted(self._unloaded)), versions, dict(self._settings), fatal)
        ]
        current = self._current
        if current is None or (current.is_deadly and current.change.model in {model for model, _ in fatal}):
            return first
        current.waiting.add(number)
        first.append(current.change)
        return first

    def ask(self, number: int, ask: Ask, now_s: float) -> None:
        """Queue a change that a worker asked for."""
        self._queue.append((number, ask, now_s + CHANGE_LIMIT_S))
        self._next()

    def answer_late(self, now_s: float) -> None:
        """Answer those that have waited for `CHANGE_LIMIT_S`. The current change goes on; one not begun is dropped."""
        current = self._current
        if current is None:
            return
        which = ", ".join(map(str, sorted(current.waiting)))
        made = f"{'unloaded' if current.change.unload else 'loaded'} model {current.change.model!r}"
        if now_s >= current.until_s and current.asker != _NOBODY:
            text = f"worker {which} has not {made} within {CHANGE_LIMIT_S:.0f} s; that goes on"
            self._tell(current.asker, WorkerReply(current.ask_id, ("Unavailable", text)))
            current.asker = _NOBODY
        while self._queue and now_s >= self._queue[0][2]:
            asker, ask, _ = self._queue.popleft()
            text = f"no turn within {CHANGE_LIMIT_S:.0f} s: worker {which} has not {made} yet; try again later"
            self._tell(asker, WorkerReply(ask.id, ("Unavailable", text)))

    def done(self, number: int, done: Done) -> None:
        """Record that a worker has made the current change, or failed to."""
        if self._current is None or self._current.change.id != done.id:
            return
        self._remember(self._current.change, done)
        self._current.error = self._current.error or done.error
        self._without(number)

    def gone(self, number: int, loading: tuple[str, str] | None = None) -> None:
        """Forget a worker that died, while it was `loading` a version of a model if any: nobody waits for it, and the
        changes it asked for are dropped unless begun."""
        self._workers.discard(number)
        self._queue = deque(one for one in self._queue if one[0] != number)
        if self._current is not None and self._current.asker == number:
            self._current.asker = _NOBODY  # the next worker of this number did not ask for it
        if self._current is not None and loading is not None and loading[0] == self._current.change.model:
            self._current.is_deadly = not self._current.change.unload
        self._without(number)

    def _without(self, number: int) -> None:
        now = self._current
        if now is None:
            return
        now.waiting.discard(number)
        if now.waiting:
            return
        self._current = None
        if now.asker in self._workers:
            self._tell(now.asker, WorkerReply(now.ask_id, now.error))
        self._next()

    def _remember(self, change: Change, done: Done) -> None:
        """Remember a change made by any worker, for later workers."""
        if done.versions and change.unload:
            self._unloaded.add(change.model)
            self._settings.pop(change.model, None)
        elif done.versions:
            self._unloaded.discard(change.model)
            self._settings.pop(change.model, None)
            if done.settings != AS_CONFIGURED:
                self._settings[change.model] = done.settings
            self._versions[change.model] = done.versions

    def _next(self) -> None:
        if self._current is not None or not self._queue:
            return
        asker, ask, until_s = self._queue.popleft()
        self._count += 1
        change = Change(self._count, ask.model, ask.unload, ask.settings)
        self._current = _CurrentChange(change, asker, ask.id, until_s, set(self._workers))
        for number in sorted(self._workers):
            self._tell(number, change)


LIMIT_S = 5.0
"""How long a caller waits for the slowest worker."""


@dataclass
class _Gathering:
    """The worker that asked, and the workers that have not replied yet."""

    asker: int
    ask_id: int
    waiting: set[int]


class GatheredStatistics:
    """Statistics at the supervisor, which asks every worker. Counts of a worker that died are kept, so no sum ever
    falls.

    Not thread-safe.
    """

    def __init__(self, tell: Tell) -> None:
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

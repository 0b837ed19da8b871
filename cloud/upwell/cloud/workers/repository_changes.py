"""Loads and unloads by request, made in all workers before the caller gets its answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from upwell.cloud.workers.worker_messages import Ask, Change, Done, Message, StartWorker, WorkerReply
from upwell.shared.oip.grpc.server.triton_extensions import AS_CONFIGURED, LoadSettings

Tell = Callable[[int, Message], None]

_NOBODY = -1


@dataclass
class _CurrentChange:
    """One change: the worker that asked for it, and the workers that have not made it yet."""

    change: Change
    asker: int
    ask_id: int
    waiting: set[int]
    error: tuple[str, str] | None = None


class Changes:
    """The supervisor's part: sends one change at a time to all workers, and remembers changes for later workers.

    `tell` sends a message to the worker of a number. Not thread-safe.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._queue: deque[tuple[int, Ask]] = deque()
        self._current: _CurrentChange | None = None
        self._count = 0
        self._unloaded: set[str] = set()
        self._versions: dict[str, tuple[str, ...]] = {}
        self._settings: dict[str, LoadSettings] = {}
        self._workers: set[int] = set()

    def note(self, versions: Mapping[str, tuple[str, ...]]) -> None:
        """Record the versions that were loaded at the start."""
        self._versions.update(versions)

    def start(self, number: int, config: Mapping[str, object]) -> list[Message]:
        """The first messages for a new worker, which bring it up to date, including a change in progress."""
        self._workers.add(number)
        versions = dict(self._versions) if self._versions else None
        first: list[Message] = [
            StartWorker(number, config, tuple(sorted(self._unloaded)), versions, dict(self._settings))
        ]
        if self._current is not None:
            self._current.waiting.add(number)
            first.append(self._current.change)
        return first

    def ask(self, number: int, ask: Ask) -> None:
        """Queue a change that a worker asked for."""
        self._queue.append((number, ask))
        self._next()

    def done(self, number: int, done: Done) -> None:
        """Record that a worker has made the current change, or failed to."""
        if self._current is None or self._current.change.id != done.id:
            return
        self._remember(self._current.change, done.versions)
        self._current.error = self._current.error or done.error
        self._without(number)

    def gone(self, number: int) -> None:
        """Forget a worker that died: nobody waits for it, and the changes it asked for are dropped unless begun."""
        self._workers.discard(number)
        self._queue = deque((asker, ask) for asker, ask in self._queue if asker != number)
        if self._current is not None and self._current.asker == number:
            self._current.asker = _NOBODY  # the next worker of this number did not ask for it
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

    def _remember(self, change: Change, versions: tuple[str, ...]) -> None:
        """Remember a change made by any worker, for later workers."""
        if versions and change.unload:
            self._unloaded.add(change.model)
            self._settings.pop(change.model, None)
        elif versions:
            self._unloaded.discard(change.model)
            self._settings.pop(change.model, None)
            if change.settings != AS_CONFIGURED:
                self._settings[change.model] = change.settings
            self._versions[change.model] = versions

    def _next(self) -> None:
        if self._current is not None or not self._queue:
            return
        asker, ask = self._queue.popleft()
        self._count += 1
        change = Change(self._count, ask.model, ask.unload, ask.settings)
        self._current = _CurrentChange(change, asker, ask.id, set(self._workers))
        for number in sorted(self._workers):
            self._tell(number, change)

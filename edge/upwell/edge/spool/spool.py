"""The spool: store a case, send it when the link is back, and deliver the answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout  # differs from the built-in class before 3.11
from pathlib import Path

from upwell.edge.spool.database_keeper import Keeper, KeptDatabase
from upwell.edge.spool.open_database import open_database
from upwell.edge.spool.result_delivery import Deliverer, News
from upwell.edge.spool.result_sinks import Sink
from upwell.edge.spool.spool_drainer import CaseSender, Drainer
from upwell.edge.spool.spool_store import SCHEMA, Store
from upwell.edge.spool.spooled_request import (
    Case,
    SpoolCounts,
    SpoolHeld,
    SpoolLimits,
    SpoolResult,
    SpoolTally,
    SpoolUnavailable,
    Stored,
)
from upwell.edge.uplink.egress import EgressForbidden
from upwell.shared.errors import InvalidRequest
from upwell.shared.routing.policy.compiled_policy import Verdict

FILE_NAME = "spool.db"
"""The database's name in the agent's `state_dir`."""

_MOST_WAITING_BYTES = 64 << 20
"""Memory for cases waiting to be written (bytes)."""

_SLACK_S = 5.0


class Spool:
    """Cases on disk at `path`, sent by `sender` when allowed. Thread-safe; close it.

    The policy is checked again right before a case is sent; denied cases are dropped. Each of `sinks` gets every
    result. Disk errors are never raised: lost cases are counted. The directory must be locked by this process
    (`StateDir`). `seed` makes the pauses repeatable.
    """

    def __init__(
        self,
        path: Path,
        *,
        limits: SpoolLimits,
        sender: CaseSender,
        sinks: Sequence[Sink] = (),
        seed: int | None = None,
    ) -> None:
        self._limits = limits
        self._tally = SpoolTally()
        self.news = News()
        """Signalled with every result, closed with the spool."""
        loss = "requests are still answered, but no cases are spooled"
        self._keeper = Keeper(
            KeptDatabase("spool", path, lambda at: Store(open_database(at, SCHEMA), limits), self._tally.add, loss)
        )
        self._drainer = Drainer(self._keeper, limits, self._tally, self.news, sender, seed)
        self._deliverers = [Deliverer(self._keeper, sink, self.news, self._tally) for sink in sinks]

    @property
    def problem(self) -> str:
        """Why no case can be stored now; empty if it can."""
        return self._keeper.problem

    def put(self, case: Case, verdict: Verdict, until_s: float) -> str:
        """Store a case; returns its stable id for the answer, once the case is on disk.

        Waits for the disk at most until `until_s` (monotonic), which may be in the past. Returns "" if the case was not
        stored, or not in time: it may still be sent later, but that is not promised. Audits are never waited for and
        have no id for callers. Raises only `EgressForbidden`, if the verdict keeps the case on the device.
        """
        if verdict.denial is not None:
            raise EgressForbidden(verdict)
        if self._keeper.waiting_bytes > _MOST_WAITING_BYTES:
            self._tally.add({"refused_busy": 1})
            return ""
        id = case.id
        try:
            item = Stored.of(case, id, time.time())
        except (InvalidRequest, ValueError, TypeError):
            self._tally.add({"refused_unfit": 1})
            return ""
        done = self._keeper.submit(lambda store: store.add(item.at(self._keeper.now_s())), item.size_bytes)
        done.add_done_callback(self._note_put)
        if case.kind == "audit":
            return ""
        try:
            return id if done.result(max(0.0, until_s - time.monotonic())) else ""
        except FutureTimeout:
            self._tally.add({"unnamed": 1})
        except SpoolUnavailable:
            pass
        return ""

    def _note_put(self, done: Future[bool]) -> None:
        if done.exception() is not None:
            self._tally.add({"failed_writes": 1})
        elif done.result():
            self._drainer.wake()

    def cloud_answered(self) -> None:
        """Note that the cloud answered a live request, so that the spool need not wait for the link."""
        self._drainer.cloud_answered()

    def results(self, since: int, max_bytes: int) -> list[SpoolResult]:
        """The results after number `since`, in order, about `max_bytes` of them. Raises `SpoolUnavailable`."""
        return self._keeper.ask(lambda store: store.results(since, max_bytes))

    def counts(self) -> SpoolCounts:
        """The counts since the start."""
        return self._tally.counts

    def held(self, timeout_s: float | None = None) -> SpoolHeld:
        """The contents on disk. Raises `SpoolUnavailable`, also if reading them takes longer than `timeout_s`."""
        return self._keeper.ask(lambda store: store.held(self._keeper.now_s()), timeout_s)

    def close(self) -> None:
        """End the streams, let a call in progress end (within `send_timeout_s`), and close the database.

        Close the client used by `send` first to end that call at once. Calling it twice is harmless.
        """
        self._drainer.stop()
        self.news.close()
        self._drainer.join(self._limits.send_timeout_s + _SLACK_S)
        for deliverer in self._deliverers:
            deliverer.join(_SLACK_S)
        self._keeper.close()

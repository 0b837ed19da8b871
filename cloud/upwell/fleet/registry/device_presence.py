"""When each device last polled, and what a poll brings: in memory, written to the database in batches."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, bindparam, insert

from upwell.fleet.registry.device_reports import DeviceCounts
from upwell.fleet.storage.tables import DEVICES, STATISTICS
from upwell.shared.errors import Refused

POLLS_A_WRITE = 15
"""Maximum number of polls before a device's last contact is written; at once if it reports more."""

FULL_STATE_S = 600.0
"""Minimum time between requests for the full state of a device that skips a number: it may have polled another
replica.
"""

MOST_POLLS_A_MINUTE = 120
"""Limit per device, far above normal use, so that none can fill the database."""

SILENT_POLLS = 5
"""Number of missed polls after which a device is shown as silent."""


@dataclass
class _Seen:
    sequence_num: int
    last_seen_unix_s: float
    written_unix_s: float
    asked_unix_s: float = 0.0
    minute_unix_s: float = 0.0
    polls: int = 0


@dataclass(frozen=True)
class Heard:
    """Where a poll stands in the sequence: whether it is the device's first to this process, and whether a message
    was missed, so that the device must report its full state.
    """

    is_first: bool
    wants_full_state: bool


@dataclass
class PresenceUpdate:
    """What is to be written: when devices were last seen, their last counts, each with its time, and their drift."""

    seen: dict[str, float] = field(default_factory=dict)
    counted: dict[str, tuple[float, DeviceCounts]] = field(default_factory=dict)
    drift: dict[str, Mapping[str, Any]] = field(default_factory=dict)


class Presence:
    """The presence of every device that polled this process. Thread-safe; time is an argument (Unix seconds).

    A device takes about 300 bytes. `is_shared` says that devices may also poll other replicas.
    """

    def __init__(self, poll_s: float, *, is_shared: bool) -> None:
        self.poll_s = poll_s
        self._write_after_s = POLLS_A_WRITE * poll_s
        self._is_shared = is_shared
        self._lock = threading.Lock()
        self._seen: dict[str, _Seen] = {}
        self._batch = PresenceUpdate()
        self.polls = 0

    def heard(self, device_id: str, sequence_num: int, now_unix_s: float, written_unix_s: float | None) -> Heard:
        """Record a poll; `written_unix_s` is the last contact in the database.

        Raises `Refused` for a device that polls too often.
        """
        with self._lock:
            self.polls += 1
            seen = self._seen.get(device_id)
            is_first = seen is None
            if seen is None:
                seen = self._seen[device_id] = _Seen(sequence_num, now_unix_s, written_unix_s or 0.0)
            self._check_pace(seen, now_unix_s)
            wants = not is_first and self._was_missed(seen, sequence_num, now_unix_s)
            if wants:
                seen.asked_unix_s = now_unix_s
            seen.sequence_num, seen.last_seen_unix_s = sequence_num, now_unix_s
            if now_unix_s - seen.written_unix_s >= self._write_after_s:
                seen.written_unix_s = now_unix_s
                self._batch.seen[device_id] = now_unix_s
        return Heard(is_first, wants)

    @staticmethod
    def _check_pace(seen: _Seen, now_unix_s: float) -> None:
        if not 0 <= now_unix_s - seen.minute_unix_s < 60.0:
            seen.minute_unix_s, seen.polls = now_unix_s, 0
        seen.polls += 1
        if seen.polls > MOST_POLLS_A_MINUTE:
            raise Refused("this device polls too often", retry_after_s=60.0)

    def _was_missed(self, seen: _Seen, sequence_num: int, now_unix_s: float) -> bool:
        if sequence_num == seen.sequence_num + 1:
            return False
        is_behind = sequence_num <= seen.sequence_num
        return is_behind or not self._is_shared or now_unix_s - seen.asked_unix_s >= FULL_STATE_S

    def counted(self, device_id: str, now_unix_s: float, counted: DeviceCounts) -> None:
        """Keep a device's counts for the next batch."""
        with self._lock:
            self._batch.counted[device_id] = now_unix_s, counted
            self._batch.seen[device_id] = now_unix_s
            if device_id in self._seen:
                self._seen[device_id].written_unix_s = now_unix_s

    def drifted(self, device_id: str, models: Mapping[str, Any]) -> None:
        """Keep a device's report of drift for the next batch."""
        with self._lock:
            self._batch.drift[device_id] = models

    @property
    def is_written(self) -> bool:
        """Whether there is nothing to write."""
        with self._lock:
            return self._batch == PresenceUpdate()

    def take(self) -> PresenceUpdate:
        """Take the batch to write now."""
        with self._lock:
            batch, self._batch = self._batch, PresenceUpdate()
        return batch

    def give_back(self, batch: PresenceUpdate) -> None:
        """Writing failed: put the batch back into the next one. Counts are reported again anyway."""
        with self._lock:
            self._batch.seen = {**batch.seen, **self._batch.seen}
            self._batch.drift = {**batch.drift, **self._batch.drift}

    def last_seen(self, stored: Mapping[str, Any]) -> float | None:
        """When a device was last seen, by this process or by the database."""
        seen = self._seen.get(stored["id"])
        known: float | None = stored["last_seen_unix_s"]
        return known if seen is None else max(seen.last_seen_unix_s, known or 0.0)


def write_batch(connection: Connection, batch: PresenceUpdate) -> None:
    """Write when devices were last seen, the drift of their models, and their counts."""
    if batch.seen:
        statement = DEVICES.update().where(DEVICES.c.id == bindparam("the_id")).values(last_seen_unix_s=bindparam("at"))
        connection.execute(statement, [{"the_id": one, "at": at} for one, at in sorted(batch.seen.items())])
    if batch.drift:
        statement = DEVICES.update().where(DEVICES.c.id == bindparam("the_id")).values(drift=bindparam("models"))
        connection.execute(
            statement, [{"the_id": one, "models": dict(models)} for one, models in sorted(batch.drift.items())]
        )
    if batch.counted:
        statement = DEVICES.update().where(DEVICES.c.id == bindparam("the_id")).values(statistics=bindparam("counted"))
        counted = [(device_id, at, _counted(one)) for device_id, (at, one) in sorted(batch.counted.items())]
        connection.execute(statement, [{"the_id": device_id, "counted": one} for device_id, _, one in counted])
        rows = [
            {
                "device_id": device_id,
                "at_unix_s": at,
                **{key: one[key] for key in ("release", "since_unix_s", "counts")},
            }
            for device_id, at, one in counted
        ]
        connection.execute(insert(STATISTICS), rows)


def _counted(one: DeviceCounts) -> dict[str, Any]:
    return {
        "release": one.release,
        "since_unix_s": one.since_unix_s,
        "counts": dict(one.counts),
        "demand": dict(one.demand),
    }

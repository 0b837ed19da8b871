"""When each device was last heard of, and in which order: in memory, and from there to the database in batches."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from upwell.fleet.registry.report import DeviceCounts
from upwell.shared.errors import Refused

POLLS_A_WRITE = 15
"""Maximum number of polls before a device's last contact is written; at once if it reports more."""

FULL_STATE_S = 600.0
"""Minimum time between checks of a device that skips a number: with several replicas it may have polled another one."""


MOST_POLLS_A_MINUTE = 120
"""Limit per device, far above normal use, so that none can fill the database."""


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
    """What a poll's place in the order says: whether it is the first that this process sees of the device, and whether
    something was missed, so that the device is to report its full state."""

    is_first: bool
    wants_full_state: bool


@dataclass
class PresenceUpdate:
    """What is to be written: when devices were last seen, what each counted last, at an instant, and its drift."""

    seen: dict[str, float] = field(default_factory=dict)
    counted: dict[str, tuple[float, DeviceCounts]] = field(default_factory=dict)
    drift: dict[str, Mapping[str, Any]] = field(default_factory=dict)


class Presence:
    """Of every device that polled this process. Safe to use from many threads; time is an argument (Unix seconds).

    A device takes about 300 bytes. `is_shared` says that devices may speak to other replicas, too.
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
        """Note a poll; `written_unix_s` is when the database last heard of the device.

        Raises `Refused` for a device that polls without a pause.
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
            raise Refused("this device polls without a pause", retry_after_s=60.0)

    def _was_missed(self, seen: _Seen, sequence_num: int, now_unix_s: float) -> bool:
        if sequence_num == seen.sequence_num + 1:
            return False
        is_behind = sequence_num <= seen.sequence_num
        return is_behind or not self._is_shared or now_unix_s - seen.asked_unix_s >= FULL_STATE_S

    def counted(self, device_id: str, now_unix_s: float, counted: DeviceCounts) -> None:
        """Keep what a device counted for the next batch."""
        with self._lock:
            self._batch.counted[device_id] = now_unix_s, counted
            self._batch.seen[device_id] = now_unix_s
            if device_id in self._seen:
                self._seen[device_id].written_unix_s = now_unix_s

    def drifted(self, device_id: str, models: Mapping[str, Any]) -> None:
        """Keep what a device says of the drift of its models for the next batch."""
        with self._lock:
            self._batch.drift[device_id] = models

    @property
    def is_written(self) -> bool:
        """Whether there is nothing to write."""
        with self._lock:
            return self._batch == PresenceUpdate()

    def take(self) -> PresenceUpdate:
        """What is to be written now."""
        with self._lock:
            batch, self._batch = self._batch, PresenceUpdate()
        return batch

    def give_back(self, batch: PresenceUpdate) -> None:
        """It could not be written, and goes into the next batch; what devices counted comes again anyway."""
        with self._lock:
            self._batch.seen = {**batch.seen, **self._batch.seen}
            self._batch.drift = {**batch.drift, **self._batch.drift}

    def last_seen(self, stored: Mapping[str, Any]) -> float | None:
        """When a device was last heard of: by this process, or by what the database says."""
        seen = self._seen.get(stored["id"])
        known: float | None = stored["last_seen_unix_s"]
        return known if seen is None else max(seen.last_seen_unix_s, known or 0.0)

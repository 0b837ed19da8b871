"""Delivering cases: each is copied, once complete, to a folder, a fleet service or object storage."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from upwell.edge.case_collection.case_database import READ, SCHEMA, read_case
from upwell.edge.case_collection.case_file_encryption import pack, read_key
from upwell.edge.case_collection.cases_section import CasesSection
from upwell.edge.case_collection.collected_case import CollectedCase
from upwell.edge.policy.router_service import RouterService
from upwell.edge.spool.open_database import opened
from upwell.shared.errors import UpwellError
from upwell.shared.files import StateFile, remove_drafts, write_whole
from upwell.shared.opamp import CASE_SUFFIX
from upwell.shared.platform.background_thread import BackgroundThread

DELIVERED_NAME = "cases-home.json"
"""Record of the delivered cases, in the agent's `state_dir`."""

_MAX_RECORD_BYTES = 64 << 20
_AT_ONCE = 200
_CLOSE_S = 5.0
_LONGEST_PAUSE_S = 3600.0
_log = logging.getLogger(__name__)


class CaseAway(UpwellError):
    """The case cannot be delivered for now. `retry_after_s` says when to try again, if known; `is_said`, that another
    part of the agent has logged it already; `is_unsent`, that no byte of it has left."""

    def __init__(
        self, text: str, retry_after_s: float | None = None, *, is_said: bool = False, is_unsent: bool = False
    ) -> None:
        super().__init__(text)
        self.retry_after_s, self.is_said, self.is_unsent = retry_after_s, is_said, is_unsent


class CaseRefused(UpwellError):
    """The destination refuses this case for good; it may accept others."""


Put = Callable[[bytes], None]


class CaseHome(Protocol):
    """A destination for cases; `where` is its name in messages."""

    where: str

    def ready(self, id: str, size_bytes: int) -> Put:
        """A function that stores a case of this size; called before bytes are taken from a budget.

        Both raise `CaseAway` and `CaseRefused`.
        """


class FolderHome:
    """The agent's own folder within a folder, a share or a USB stick."""

    def __init__(self, to: Path, agent: str) -> None:
        self._target = to / _folder_name(agent)
        self.where = str(self._target)
        self._is_tidy = False

    def ready(self, id: str, size_bytes: int) -> Put:
        """Create it if its parent exists, and look whether it has room: a full stick must not spend a budget."""
        try:
            self._target.mkdir(exist_ok=True)
            if not self._is_tidy:
                remove_drafts(self._target)
                self._is_tidy = True
            disk = shutil.disk_usage(self._target)
        except OSError as error:
            raise CaseAway(error.strerror or type(error).__name__) from None
        if disk.free < size_bytes and disk.total:  # some network shares tell no sizes
            raise CaseAway(f"{disk.free} bytes are free, {size_bytes} are needed")
        if not os.access(self._target, os.W_OK):
            raise CaseAway("it cannot be written")
        return partial(self._put, id)

    def _put(self, id: str, data: bytes) -> None:
        try:
            write_whole(self._target / f"{id}{CASE_SUFFIX}", data, 0o600)
        except OSError as error:
            raise CaseAway(error.strerror or type(error).__name__, is_unsent=True) from None


class CaseCarrier:
    """Delivers each case once, and again if the cloud's answer comes later. Closes with the agent.

    What the policy denies at that time stays, and bytes are taken from its budgets. An unreachable destination is tried
    again, so a case whose receipt was lost arrives twice, under the same name; delivered cases are recorded in the file
    `DELIVERED_NAME`. Raises `ConfigError` for a wrong key.
    """

    def __init__(self, section: CasesSection, home: CaseHome, database: Path, router: RouterService) -> None:
        self._section, self._home, self._database, self._router = section, home, database, router
        self._key = None if section.key_file is None else read_key(section.key_file)
        what, loss = "the record of delivered cases", "each is delivered again"
        self._memory = StateFile(database.with_name(DELIVERED_NAME), what, loss, _MAX_RECORD_BYTES)
        self._refused: set[tuple[str, bool]] = set()
        self._retry_after_s = 0.0
        self._sent: dict[str, bool] = self._memory.read(_sent_in, {})
        self._saved = dict(self._sent)
        self._counts: Counter[str] = Counter()
        self._stop = threading.Event()
        self._failed = False
        self._thread = BackgroundThread("cases-home", self._run, self._stop.is_set)
        self._thread.start()

    def counts(self) -> Mapping[str, int]:
        """The outcomes of cases: `sent`, `denied`, `over_budget`, `refused`, `failed`."""
        return Counter(self._counts)

    def close(self) -> None:
        """Stop. A share that hangs is abandoned with its thread. Calling it twice is harmless."""
        self._stop.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while True:
            with contextlib.suppress(FileNotFoundError):
                self._carry()
            if self._stop.wait(max(self._section.every, self._retry_after_s)):
                return
            self._retry_after_s = 0.0

    def _carry(self) -> None:
        try:
            with opened(self._database, len(SCHEMA)) as connection:
                waiting = connection.execute(
                    "SELECT id, length(cloud) > 0 FROM cases JOIN bodies USING (id) ORDER BY kept_s, cases.rowid"
                ).fetchall()
        except sqlite3.Error as error:
            if self._database.exists():
                self._complain(f"the cases cannot be read: {error}")
            return
        here = {id for id, _ in waiting}
        self._sent = {id: done for id, done in self._sent.items() if id in here}
        self._refused = {(id, done) for id, done in self._refused if id in here}
        news = [
            id for id, has_cloud in waiting
            if self._sent.get(id) is not bool(has_cloud) and (id, bool(has_cloud)) not in self._refused
        ]  # fmt: skip
        for start in range(0, len(news), _AT_ONCE):
            if self._stop.is_set() or not self._carry_some(news[start : start + _AT_ONCE]):
                return

    def _carry_some(self, ids: list[str]) -> bool:
        """Whether to go on."""
        goes_on = True
        for id in ids:
            case = self._read(id)
            goes_on = case is None or self._carry_one(case)
            if not goes_on or self._stop.is_set():
                break
        self._save()
        return goes_on

    def _carry_one(self, case: CollectedCase) -> bool:
        facts = case.facts
        data = pack(case, self._key)
        verdict = self._router.verdict(facts.model, facts.tags, (len(data),))
        if verdict.denial is not None or verdict.collect_rule:
            self._counts["denied"] += 1
            return True
        charged_at_s = 0.0
        try:
            put = self._home.ready(facts.id, len(data))
            now_s = time.time()
            if not self._router.charge(facts.model, len(data), now_s):
                self._counts["over_budget"] += 1
                return False
            charged_at_s = now_s
            put(data)
        except CaseRefused as error:
            self._refused.add((facts.id, bool(case.cloud)))
            self._counts["refused"] += 1
            _log.warning("case %s was refused by %s: %s", facts.id, self._home.where, error)
            return True
        except CaseAway as error:
            if charged_at_s and error.is_unsent:
                self._router.refund(facts.model, len(data), charged_at_s)
            self._retry_after_s = min(error.retry_after_s or 0.0, _LONGEST_PAUSE_S)
            if not error.is_said:
                self._counts["failed"] += 1
                self._complain(f"{self._home.where}: {error}")
            return False
        self._failed = False
        self._counts["sent"] += 1
        self._sent[facts.id] = bool(case.cloud)
        return True

    def _read(self, id: str) -> CollectedCase | None:
        try:
            with opened(self._database, len(SCHEMA)) as connection:
                row = connection.execute(f"{READ} WHERE cases.id = ?", (id,)).fetchone()
            return None if row is None else read_case(row)
        except (sqlite3.Error, ValueError):
            return None

    def _complain(self, text: str) -> None:
        if not self._failed:
            _log.warning("cases cannot be delivered for now: %s", text)
        self._failed = True

    def _save(self) -> None:
        # A destination that is away costs no write.
        if self._sent != self._saved and self._memory.write({"version": 1, "sent": self._sent}):
            self._saved = dict(self._sent)


def _sent_in(document: Any) -> dict[str, bool]:
    return {str(id): bool(done) for id, done in document["sent"].items()}


def _folder_name(agent: str) -> str:
    """A separate folder name for each agent."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in agent).strip(".") or "agent"

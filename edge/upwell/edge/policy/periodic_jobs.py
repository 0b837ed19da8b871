"""The agent's periodic jobs: checking for a changed policy, and saving state for a restart."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from pathlib import Path

from upwell.edge.policy.router_service import RouterService
from upwell.shared.files import StateFile
from upwell.shared.routing.estimators.budget_ledger import BudgetLedger

PERIOD_S = 1.0
BUDGETS_NAME = "budgets.json"
"""The file of spent budgets, in the agent's `state_dir`."""

_log = logging.getLogger(__name__)


class PeriodicJobs:
    """A thread that calls each of `jobs` about once every `PERIOD_S`, and once more when it is closed."""

    def __init__(self, *jobs: Callable[[], None]) -> None:
        self._jobs = jobs
        self._stop: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="periodic-jobs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Run each job a last time and stop. Calling it twice is harmless."""
        self._stop.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            is_over = self._wait()
            for job in self._jobs:
                try:
                    job()
                except Exception:  # noqa: BLE001 (the boundary of a thread that must live on)
                    _log.exception("a periodic job failed")
            if is_over:
                return

    def _wait(self) -> bool:
        try:
            self._stop.get(timeout=PERIOD_S)
        except queue.Empty:
            return False
        return True


class BudgetFile:
    """Saves the spent budgets in a file, so that a restart does not reset them.

    The file is replaced atomically whenever they have changed; a crash loses what was spent since.
    """

    def __init__(self, path: Path, router: RouterService) -> None:
        self._file = StateFile(path, "the spent budgets", "they start from zero")
        self._router = router
        found = self._file.read(BudgetLedger.from_json, None)
        if found is not None:
            router.restore(found)
        self._saved = found or router.state.budgets

    def save(self) -> None:
        """Write the file if the budgets have changed. A failing disk is logged once."""
        budgets = self._router.state.budgets
        if budgets != self._saved and self._file.write(budgets.to_json()):
            self._saved = budgets

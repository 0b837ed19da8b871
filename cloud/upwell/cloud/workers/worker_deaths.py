"""What follows from the deaths of workers: when one is started again, and which versions of models are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Restarts:
    """The consecutive deaths of one worker. An immutable value; time is an argument.

    After the k-th death in a row the supervisor waits `FIRST_WAIT_S` · 2^(k-1), at most `LONGEST_WAIT_S`, so that a
    worker that fails at once does not take the machine from the others. A worker that served for `WELL_S` before it
    died starts a new count. After `LIMIT` deaths it is hopeless, but tried again while others serve.
    """

    FIRST_WAIT_S: ClassVar[float] = 0.5
    LONGEST_WAIT_S: ClassVar[float] = 30.0
    WELL_S: ClassVar[float] = 60.0
    LIMIT: ClassVar[int] = 6

    deaths: int = 0

    def died(self, served_s: float) -> Restarts:
        """The state after one more death, of a worker that had served for `served_s`."""
        return Restarts(1 if served_s >= self.WELL_S else self.deaths + 1)

    @property
    def wait_s(self) -> float:
        """Seconds to wait before the next start."""
        doublings = min(max(0, self.deaths - 1), 30)  # the deaths of a hopeless one have no limit, but floats have
        return min(self.LONGEST_WAIT_S, self.FIRST_WAIT_S * 2.0**doublings)

    @property
    def is_hopeless(self) -> bool:
        """Whether it has died too often in a row."""
        return self.deaths >= self.LIMIT


@dataclass(slots=True)
class Silence:
    """How long nothing has come from a worker, which sends something every `HEARTBEAT_S`: the checks since then.

    Checks are counted rather than seconds, so that a worker is not blamed for a time in which the supervisor did not
    run either. After `LIMIT` of them it hangs: it is stopped, or native code keeps the interpreter's lock. Runs of
    models release that; a load need not (imports and compilers, for minutes), so a worker that loads has more time, and
    one that starts, which sends nothing in between.
    """

    LIMIT: ClassVar[int] = 30
    LOADING_LIMIT: ClassVar[int] = 3600

    checks: int = 0
    loading: tuple[str, str] | None = None
    """The model and version that it loads now."""

    def check(self, *, is_starting: bool = False) -> bool:
        """Count one more check; returns whether the worker was found to hang by this one."""
        self.checks += 1
        return self.checks == (self.LOADING_LIMIT if self.loading or is_starting else self.LIMIT)


class FatalVersions:
    """The versions of models that end workers, by model and version. Time is an argument.

    A version is left out after `LOADS` deaths in a row while it was loaded, or `RUNS` deaths within `WITHIN_S` while it
    ran, until it is loaded again, which happens when its files change or a caller asks for it.
    """

    LOADS = 2
    RUNS, WITHIN_S = 3, 600.0

    def __init__(self) -> None:
        self._loads: Counter[tuple[str, str]] = Counter()
        self._runs_s: dict[tuple[str, str], list[float]] = {}
        self._left_out: set[tuple[str, str]] = set()

    @property
    def left_out(self) -> tuple[tuple[str, str], ...]:
        """The versions that workers must not load when they start."""
        return tuple(sorted(self._left_out))

    def died_loading(self, version: tuple[str, str]) -> str:
        """Count the death of a worker that loaded it; returns this as a sentence."""
        self._loads[version] += 1
        self._leave_out(version, self._loads[version] >= self.LOADS)
        return _sentence("loading", version, f"{self.LOADS} such deaths")

    def died_running(self, version: tuple[str, str], now_s: float) -> str:
        """Count the death of a worker that ran it; returns this as a sentence."""
        runs_s = self._runs_s.setdefault(version, [])
        runs_s[:] = [*(one for one in runs_s if one > now_s - self.WITHIN_S), now_s]
        self._leave_out(version, len(runs_s) >= self.RUNS)
        return _sentence("running", version, f"{self.RUNS} such deaths within {self.WITHIN_S / 60:.0f} minutes")

    def was_loaded(self, version: tuple[str, str], *, is_start: bool) -> None:
        """A worker has survived a load of it; `is_start` says that it was starting, not asked to load that version."""
        self._loads.pop(version, None)
        if not is_start:
            self._left_out.discard(version)
            self._runs_s.pop(version, None)

    def _leave_out(self, version: tuple[str, str], is_enough: bool) -> None:
        if is_enough:
            self._left_out.add(version)


def _sentence(what: str, version: Iterable[str], limit: str) -> str:
    model, number = version
    return f"it was {what} model {model} version {number}, which is left out after {limit}, until its files change"

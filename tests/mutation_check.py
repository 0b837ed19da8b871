"""How many seeded faults do the quick tests catch? Prints a table; ends with 1 where one is missed.

    python -m tests.mutation_check [AREA ...] [--marks EXPRESSION] [--jobs 2]

Each fault of `tests.seeded_faults` is put into a copy of the tree, and the tests that are directly concerned run there
until one fails. The working tree is never changed. First they must pass on a copy without faults.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.seeded_faults import FAULTS, TESTS, Fault

ROOT = Path(__file__).parents[1]
LIMIT_S = 600.0
_PASSED, _FAILED, _BROKEN = 0, 1, 2
"""What pytest ends with; 2 also where a module cannot be imported any more."""


@dataclass(frozen=True)
class Outcome:
    """What the tests said to a fault: the first that failed, empty where none did."""

    fault: Fault
    line: int
    caught_by: str
    took_s: float


class Copy:
    """A copy of the tree of its own, with no fault or one."""

    def __init__(self, root: Path) -> None:
        self._root = root
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, check=True, capture_output=True,
        )  # fmt: skip
        for name in listed.stdout.decode().split("\0"):
            if name and (ROOT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name)

    def passes(self, tests: Sequence[str], marks: str) -> tuple[bool, str]:
        """Whether the tests pass, and the first that does not."""
        packages = os.pathsep.join(str(self._root / part) for part in ("edge", "cloud", "shared", "protos"))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", marks, "-p", "no:cacheprovider", *tests]
        try:
            done = subprocess.run(
                command, cwd=self._root, env={**os.environ, "PYTHONPATH": packages}, timeout=LIMIT_S,
                check=False, capture_output=True, text=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False, f"nothing was said for {LIMIT_S:.0f} s"
        if done.returncode not in (_PASSED, _FAILED, _BROKEN):
            raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        summary = done.stdout.rpartition("short test summary info")[2].splitlines()
        words = (line.split(" ")[1] for line in summary if line.startswith(("FAILED ", "ERROR ")))
        return done.returncode == _PASSED, next(words, "")

    @contextmanager
    def with_fault(self, fault: Fault) -> Iterator[None]:
        """The fault is in the copy within the block."""
        path = self._root / fault.file
        text = path.read_text()
        self._write(path, text.replace(fault.old, fault.new))
        try:
            yield
        finally:
            self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        # What is compiled is known by time and size of its source, and both may be the same.
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def line_of(fault: Fault) -> int:
    """Where the fault goes. Ends the program where its text is not in the file exactly once."""
    text = (ROOT / fault.file).read_text()
    if text.count(fault.old) != 1:
        raise SystemExit(f"{fault.file}: found {text.count(fault.old)} times, expected once: {fault.old!r}")
    return text[: text.index(fault.old)].count("\n") + 1


def check(faults: Sequence[Fault], marks: str, jobs: int, tell: Callable[[Outcome], None]) -> list[Outcome]:
    """Try each of the faults, `jobs` at a time."""
    lines = {fault: line_of(fault) for fault in faults}
    copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    lock = threading.Lock()

    def run_without(area: str) -> None:
        copy = copies.get()
        try:
            passed, failed = copy.passes(TESTS[area], marks)
        finally:
            copies.put(copy)
        if not passed:
            raise SystemExit(f"{area}: {failed} fails without any fault")

    def run_with(fault: Fault) -> Outcome:
        copy = copies.get()
        began_s = time.monotonic()
        try:
            with copy.with_fault(fault):
                passed, failed = copy.passes(TESTS[fault.area], marks)
        finally:
            copies.put(copy)
        outcome = Outcome(fault, lines[fault], "" if passed else failed or "?", time.monotonic() - began_s)
        with lock:
            tell(outcome)
        return outcome

    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        for _ in range(jobs):
            copies.put(Copy(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="upwell-mutation-")))))
        list(pool.map(run_without, dict.fromkeys(fault.area for fault in faults)))
        return list(pool.map(run_with, faults))


def _tell(outcome: Outcome) -> None:
    where = f"{outcome.fault.file}:{outcome.line}"
    said = f"caught by {outcome.caught_by}" if outcome.caught_by else f"MISSED: {outcome.fault.new.strip()!r}"
    print(f"{outcome.fault.area:9} {outcome.took_s:6.1f} s  {where}  {said}", flush=True)


def main() -> int:
    """Check the areas that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areas", nargs="*", choices=[[], *TESTS], help="all without any")
    parser.add_argument("--marks", default="", help="which tests, as `pytest -m` takes it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    areas = options.areas or list(TESTS)
    outcomes = check([fault for fault in FAULTS if fault.area in areas], options.marks, options.jobs, _tell)
    print()
    for area in areas:
        own = [outcome for outcome in outcomes if outcome.fault.area == area]
        print(f"{area:9} {sum(bool(outcome.caught_by) for outcome in own):3} of {len(own)} caught")
    missed = sum(not outcome.caught_by for outcome in outcomes)
    print(f"{'all':9} {len(outcomes) - missed:3} of {len(outcomes)} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())

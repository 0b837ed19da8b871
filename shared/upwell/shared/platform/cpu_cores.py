"""The cores that this process may use: fewer than the machine's in a container or a unit with a quota."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_UNLIMITED = ("max", "-1")


def usable_cores(system: Path = Path("/")) -> int:
    """The cores of this process's affinity, at most the quota of its control groups (rounded up), at least 1.

    The system shows every container all cores of its machine; runs on more than the quota pays for stop each other.
    `system` is where `/proc` and `/sys` are.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # absent on macOS and Windows
    there = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, min([there, *map(math.ceil, _quotas(system))]))


def _quotas(system: Path) -> Iterator[float]:
    """The quotas in cores that limit this process (cgroup v2, each group above its own too; v1 as containers see it).

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files
    """
    top = system / "sys/fs/cgroup"
    lines = _words(system / "proc/self/cgroup")
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
    parts = [part for part in own.split("/") if part not in ("", "..")]
    limits = [_words(top.joinpath(*parts[:depth], "cpu.max")) for depth in range(len(parts) + 1)]
    limits.append([*_words(top / "cpu/cpu.cfs_quota_us"), *_words(top / "cpu/cpu.cfs_period_us")])
    for limit in limits:
        if len(limit) == 2 and limit[0] not in _UNLIMITED:
            with suppress(ValueError, ZeroDivisionError):
                yield int(limit[0]) / int(limit[1])


def _words(file: Path) -> list[str]:
    with suppress(OSError, UnicodeDecodeError):
        return file.read_text().split()
    return []

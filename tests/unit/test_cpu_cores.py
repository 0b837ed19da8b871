"""How many cores a process may use, by the files of the kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from upwell.shared.platform.cpu_cores import usable_cores

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="of Linux")


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),  # a container
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "9900000 100000\n"}, 8),
        ("0::/system.slice/upwell.service\n", {"system.slice/upwell.service/cpu.max": "300000 100000\n"}, 3),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "400000 100000\n"}, 2),
        ("0::/../../other\n", {"cpu.max": "100000 100000\n"}, 1),  # outside its namespace
        ("1:cpu:/\n0::/\n", {"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ("1:cpu:/\n0::/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ("0::/\n", {"cpu.max": ""}, 8),
        ("0::/\n", {"cpu.max": "0 0\n"}, 8),
        ("", {}, 8),
    ],
)
def test_a_quota_counts_in_whole_cores(tmp_path: Path, groups: str, files: dict[str, str], cores: int) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert usable_cores(tmp_path) == cores


def test_what_cannot_be_read_limits_nothing(tmp_path: Path) -> None:
    (tmp_path / "proc/self/cgroup").mkdir(parents=True)
    assert usable_cores(tmp_path) == usable_cores(tmp_path / "none") == 8

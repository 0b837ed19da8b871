"""A machine of its own as far as namespaces go: the host's Debian under an overlay, booted by a real systemd.

It has no network, no package index and none of this host's Python packages but the system's: what lies in /opt, /root,
/home and /work here is hidden there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SYSTEMD = Path("/lib/systemd/systemd")
STICK = "/media/stick"
_BOOT = r"""
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o lowerdir=/,upperdir="$1/upper",workdir="$1/work" "$1/root"
cd "$1/root"
for hidden in opt root home work tmp run dev; do mkdir -p $hidden; mount -t tmpfs tmpfs $hidden; done
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
for name in null zero full random urandom tty; do : > dev/$name; mount --bind /dev/$name dev/$name; done
mkdir -p dev/shm dev/pts media/stick
ln -s /proc/self/fd dev/fd
mount --bind "$2" media/stick
exec chroot . /usr/bin/env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
  /lib/systemd/systemd --system --unit=basic.target
"""


class Box:
    """The machine. `pid` is its systemd's number on this host."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def run(self, *words: str, timeout_s: float = 240.0) -> subprocess.CompletedProcess[str]:
        """A program in it, as root."""
        return subprocess.run(self.enter(*words), capture_output=True, text=True, check=False, timeout=timeout_s)

    def enter(self, *words: str) -> list[str]:
        """The command line that runs a program in it."""
        into = ["nsenter", "--target", str(self.pid), "--mount", "--pid", "--net", "--uts", "--ipc", "--root", "--wd=/"]
        return [*into, "/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", *words]

    def done(self, *words: str) -> str:
        """The same; it must succeed."""
        result = self.run(*words)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def files(self) -> dict[str, str]:
        """Every path that differs from the host, but for what systemd itself writes, and the accounts."""
        found = self.done(
            "find", "/etc", "/opt", "/usr", "/var", "-xdev", "-newer", "/media/stick/before", "-not", "-type", "d",
            "-not", "-path", "/var/log/*", "-not", "-path", "/var/lib/systemd/*", "-not", "-name", "*-",
        )  # fmt: skip
        accounts = ("/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/etc/subuid", "/etc/subgid")
        paths = set(found.split()) - {*accounts, "/etc/.pwd.lock", "/var/cache/ldconfig/aux-cache"}
        folders = self.done("find", "/opt", "/etc", "/var/lib", "-maxdepth", "2", "-type", "d", "-name", "upwell*")
        return {
            **dict.fromkeys(paths | set(folders.split()), ""), **{one: self.done("cat", one) for one in accounts[:4]}
        }  # fmt: skip


@contextlib.contextmanager
def booted(folder: Path, stick: Path) -> Iterator[Box]:
    """One, with `stick` at /media/stick; skips the test where this host cannot do that."""
    if os.geteuid() != 0 or not SYSTEMD.exists() or None in (shutil.which("unshare"), shutil.which("nsenter")):
        pytest.skip("it takes root, systemd, unshare and nsenter")
    folder.mkdir()
    spaces = ("--mount", "--pid", "--net", "--cgroup", "--uts", "--ipc", "--fork", "--kill-child")
    outer = subprocess.Popen(
        ["unshare", *spaces, "sh", "-c", _BOOT, "sh", str(folder), str(stick)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        until_s = time.monotonic() + 30
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        while True:
            assert time.monotonic() < until_s, "it does not boot"
            if outer.poll() is not None:
                pytest.skip(f"namespaces are not to be had here: {outer.stderr.read() if outer.stderr else ''}")
            pids = children.read_text().split() if children.exists() else []
            if pids:
                box = Box(int(pids[0]))
                state = box.run("systemctl", "is-system-running").stdout.strip()
                if state in ("running", "degraded"):
                    break
            time.sleep(0.2)
        yield box
    finally:
        outer.send_signal(signal.SIGKILL)
        outer.wait(20)
        if outer.stderr is not None:
            outer.stderr.close()

"""A PostgreSQL of the system's own package, on a socket in a folder of its own, as another user where we are root."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAMS = max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)
_START_S = 30.0


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """Its URL, until the block ends. Skips the test where there is none, unless UPWELL_NEEDS_POSTGRES is set."""
    if PROGRAMS is None or not (PROGRAMS / "initdb").exists():
        if os.environ.get("UPWELL_NEEDS_POSTGRES"):
            pytest.fail("PostgreSQL is not installed, and UPWELL_NEEDS_POSTGRES is set")
        pytest.skip("PostgreSQL is not installed")
    who = None if os.getuid() else pwd.getpwnam("postgres")
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    try:
        if who is not None:
            os.chown(folder, who.pw_uid, who.pw_gid)
        user = None if who is None else who.pw_uid
        data = folder / "data"
        options = ["-D", str(data), "-U", "upwell", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run([PROGRAMS / "initdb", *options], user=user, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        server = subprocess.Popen(
            [PROGRAMS / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"],
            user=user, cwd=folder, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            until_s = time.monotonic() + _START_S
            while subprocess.run([PROGRAMS / "pg_isready", "-q", "-h", folder], check=False).returncode:
                assert time.monotonic() < until_s
                assert server.poll() is None
                time.sleep(0.05)
            yield f"postgresql://upwell@/postgres?host={folder}"
        finally:
            server.terminate()
            server.wait(20)
    finally:
        shutil.rmtree(folder, ignore_errors=True)

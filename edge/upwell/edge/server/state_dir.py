"""The state folder of one agent: private, and locked by one process at a time."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import IO

from upwell.shared.errors import ConfigError
from upwell.shared.files import remove_drafts

try:
    import fcntl
except ImportError:  # Windows has no such lock; there the folder is only created
    fcntl = None  # type: ignore[assignment]

LOCK_NAME = "agent.lock"
_BEARABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT})
"""Disk errors that a running agent tolerates: nothing can be written, but the device keeps answering."""


class StateDir:
    """A folder with mode 0700, locked until `close` or the end of the process.

    `problem` says why nothing can be written there; empty if it can.
    """

    def __init__(self, path: Path) -> None:
        """Raises `ConfigError` if the folder cannot be created or read, or another agent uses it."""
        self.path = path
        self.problem = ""
        self._lock: IO[bytes] | None = None
        with ConfigError.on_os_error(path, "cannot be used", "agent.state_dir"):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = path / LOCK_NAME
            if lock.exists() and not lock.is_file():  # opening a pipe would wait for a reader
                raise ConfigError.at(lock, "expected a plain file; delete it or name another folder", "agent.state_dir")
            self._lock = self._opened(lock)
        try:
            if fcntl is not None and self._lock is not None:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise ConfigError.at(
                path, "another agent uses it; expected a separate folder for this agent",
                "agent.state_dir",
            ) from None  # fmt: skip
        if fcntl is not None:
            remove_drafts(path)

    def _opened(self, path: Path) -> IO[bytes] | None:
        """Open the lock file; None if it cannot be created, since then nobody can write here."""
        try:
            file = path.open("ab")
        except OSError as error:
            if error.errno not in _BEARABLE or not os.access(self.path, os.R_OK | os.X_OK):
                raise
            self.problem = error.strerror or str(error)
            return path.open("rb") if path.is_file() else None
        if not os.access(self.path, os.W_OK | os.X_OK):
            self.problem = os.strerror(errno.EACCES)
        return file

    @property
    def explained(self) -> str:
        """The problem and its consequences, for log and health."""
        lost = "budgets, cases, logs and new versions are lost on a restart"
        return f"{self.path} cannot be written: {self.problem}; {lost}, and the agent keeps answering"

    def close(self) -> None:
        """Release the folder."""
        if self._lock is not None:
            self._lock.close()

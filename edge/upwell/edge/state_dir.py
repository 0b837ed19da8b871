"""The folder that belongs to one agent: made private, and held by one process at a time."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from upwell.shared.errors import ConfigError

try:
    import fcntl
except ImportError:  # Windows has no such lock; there the folder is only made
    fcntl = None  # type: ignore[assignment]

LOCK_NAME = "agent.lock"


class StateDir:
    """A folder with mode 0700, locked until `close`; the lock ends with the process, however that ends."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigError` where the folder cannot be made or another agent holds it."""
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock: IO[bytes] = (path / LOCK_NAME).open("ab")
        except OSError as error:
            raise ConfigError.at(path, f"cannot be used: {error.strerror}", "agent.state_dir") from None
        try:
            if fcntl is not None:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise ConfigError.at(
                path, "another agent uses it; expected a folder of this agent's own",
                "agent.state_dir",
            ) from None  # fmt: skip

    def close(self) -> None:
        """Let another agent have it."""
        self._lock.close()

"""The policy file of a running agent: what is written into it takes over, what is wrong in it is refused."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from upwell.shared.errors import ConfigError
from upwell.shared.routing.policy import Policy
from upwell.shared.yaml import load_yaml

_Fingerprint: TypeAlias = tuple[int, int, int]

_log = logging.getLogger(__name__)


class PolicyFile:
    """A policy file, looked at again and again; `take` gets each new policy, on the thread that calls `poll`.

    The file is read once it has stayed the same from one look to the next, so neither a half-written file nor one
    that is being written in place is taken; what changes while it is read is read again. A file that is wrong or gone
    leaves the former policy in force, and says so once. `take` must not raise.

    At construction the file is read at once; what is wrong then is a `ConfigError`.
    """

    def __init__(self, path: Path, take: Callable[[Policy], None]) -> None:
        self._path = path
        self._take = take
        self._read_as = self._seen = _fingerprint(path)
        self.policy = load_yaml(path, Policy)

    def poll(self) -> None:
        """Look once. Not to be called from two threads at a time."""
        found = _fingerprint(self._path)
        settled, self._seen = found == self._seen, found
        if not settled or found == self._read_as:
            return
        policy = problem = None
        try:
            policy = load_yaml(self._path, Policy)
        except ConfigError as error:
            problem = error
        if _fingerprint(self._path) != found:
            return  # it changed while it was read, so it is read again once it has settled
        self._read_as = found
        if policy is None:
            _log.error("kept the former policy: %s", problem)
        elif policy != self.policy:
            self.policy = policy
            self._take(policy)


def _fingerprint(path: Path) -> _Fingerprint:
    """What changes when a file is written, replaced or pointed elsewhere (links followed); zeros where it is gone."""
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)

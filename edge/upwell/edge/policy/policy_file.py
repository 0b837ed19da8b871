"""The policy file of a running agent: valid changes take effect, wrong or unfinished ones do not."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from upwell.shared.config.yaml import load_yaml
from upwell.shared.platform.watched_files import SettledFile
from upwell.shared.routing.policy.policy import Policy


class PolicyFile(SettledFile[Policy]):
    """A policy file; `take` gets each new policy. Raises `ConfigError` if it is wrong at construction."""

    def __init__(self, path: Path, take: Callable[[Policy], str], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(path, lambda: load_yaml(path, Policy), take, "policy", clock)

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self.value

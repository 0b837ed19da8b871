"""The policy file of a running agent: what is put there takes over, what is wrong or unfinished does not."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.platform.watched_files import Fingerprint
from upwell.shared.routing.policy.policy import Policy

REST_IN_PLACE_S = 60.0
"""A file that is written in place is read once it has not changed for so long: nothing else says that it is whole.
Half a file can be a valid policy, without the rules that were to follow."""

_log = logging.getLogger(__name__)


class PolicyFile:
    """A policy file, looked at again and again; `take` gets each new policy, on the thread that calls `poll`.

    A file that takes the place of the former one (`mv new policy.yaml`) is whole when it comes: it is read once it has
    stayed the same from one look to the next. One that is written in place must rest for `REST_IN_PLACE_S` first, and
    so must one that was seen to grow, or that was gone in between. A file that is wrong or gone leaves the former
    policy in force, and says so once. `take` says why it will not have a policy, or nothing; it must not raise.

    At construction the file is read at once; what is wrong then is a `ConfigError`. `clock` gives seconds that only
    grow.
    """

    def __init__(self, path: Path, take: Callable[[Policy], str], clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._take = take
        self._clock = clock
        self._read_as = self._seen = Fingerprint.of(path)
        self._changed_s = clock()
        self._in_place = False
        self.policy = load_yaml(path, Policy)
        self.problem = ""
        """Why what is in the file is not in force; empty where it is."""

    def poll(self) -> None:
        """Look once. Not to be called from two threads at a time."""
        now_s, found = self._clock(), Fingerprint.of(self._path)
        if found != self._seen:
            self._note_change(found, now_s)
            return
        if found == self._read_as or (self._in_place and now_s - self._changed_s < REST_IN_PLACE_S):
            return
        policy, problem = None, ""
        try:
            policy = load_yaml(self._path, Policy)
        except ConfigError as error:
            problem = str(error)
        if Fingerprint.of(self._path) != found:
            return  # it changed while it was read, so it is read again once it has settled
        self._read_as, self._in_place = found, False
        if policy is not None and policy != self.policy:
            problem = self._take(policy)
            if not problem:
                self.policy = policy
        if problem:
            _log.error("kept the previous policy: %s", problem)
        self.problem = problem

    def _note_change(self, found: Fingerprint, now_s: float) -> None:
        """Begin to wait for it to settle: for a moment where another file has come whole, else for a while."""
        # Another file that came while the former one was there was moved into place; a change of it shows otherwise.
        was_there = self._seen.inode != 0
        in_place = (found.device, found.inode) == (self._seen.device, self._seen.inode) or not was_there
        if in_place and not self._in_place and found.inode:
            _log.warning(
                "%s is being written in place, so it takes effect once it has not changed for %.0f s. "
                "A new file that is moved into place (mv) takes effect at once and is never read half-written",
                self._path, REST_IN_PLACE_S,
            )  # fmt: skip
        self._seen, self._changed_s = found, now_s
        self._in_place = in_place if found.inode else self._in_place

"""The shares of a fleet's budget that this device was told: kept over a restart, and for as long as they hold."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from upwell.shared.files import read_json, write_whole
from upwell.shared.opamp.wish import read_wish

FILE_NAME = "shares.json"
_WRITE_S = 600.0
_log = logging.getLogger(__name__)


class KeptShares:
    """Shares by model, in `folder`. While the service says nothing the last ones hold for `keep_s`; then the device's
    own policy does alone. Times are Unix seconds; a clock that was set back starts that time anew.

    `allow` is called with the shares whenever they change. Used by one thread.
    """

    def __init__(self, folder: Path, keep_s: float, allow: Callable[[Mapping[str, float]], None]) -> None:
        self._path = folder / FILE_NAME
        self._keep_s = keep_s
        self._allow = allow
        self._shares: Mapping[str, float] = {}
        self._heard_unix_s = self._written_unix_s = 0.0

    def load(self, now_unix_s: float) -> None:
        """Take up what held before a restart."""
        try:
            found = read_json(self._path)
            heard_unix_s = float(found["heard_unix_s"])
            shares = read_wish(json.dumps({"shares": found["shares"]}).encode()).shares
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError):
            _log.warning("%s cannot be read: the policy holds alone until the fleet service says its share", self._path)
            return
        self._shares, self._heard_unix_s = shares, min(heard_unix_s, now_unix_s)
        self._allow(shares)
        self.check(now_unix_s)

    def take(self, shares: Mapping[str, float], now_unix_s: float) -> None:
        """The service says these. Raises `OSError` where they cannot be kept; they hold all the same."""
        if shares != self._shares:
            self._shares = dict(shares)
            self._allow(self._shares)
            self._write(now_unix_s)

    def heard(self, now_unix_s: float) -> None:
        """The service answered: what it said last holds anew. Raises `OSError`."""
        self._heard_unix_s = now_unix_s
        if self._shares and abs(now_unix_s - self._written_unix_s) >= _WRITE_S:
            self._write(now_unix_s)

    def check(self, now_unix_s: float) -> None:
        """Let go of shares that have held long enough without a word."""
        self._heard_unix_s = min(self._heard_unix_s, now_unix_s)
        if self._shares and now_unix_s - self._heard_unix_s > self._keep_s:
            _log.warning("nothing was heard of the fleet service for long: the policy alone says what goes up")
            self._shares = {}
            self._allow({})

    def _write(self, now_unix_s: float) -> None:
        self._heard_unix_s = self._written_unix_s = now_unix_s
        document = {"heard_unix_s": now_unix_s, "shares": dict(self._shares)}
        write_whole(self._path, json.dumps(document).encode(), 0o600)

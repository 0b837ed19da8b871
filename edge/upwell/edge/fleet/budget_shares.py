"""This device's shares of a fleet's budget, stored over restarts until they expire."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from upwell.shared.files import read_json, write_whole
from upwell.shared.opamp import read_wish

FILE_NAME = "shares.json"
_WRITE_S = 600.0
_log = logging.getLogger(__name__)


class KeptShares:
    """Shares by model, in `folder`. While the service is silent the last ones stay valid for `keep_s`; then only the
    device's own policy applies. Times are Unix seconds; setting the clock back restarts that time.

    `allow` is called with the shares whenever they change. Used by one thread.
    """

    def __init__(self, folder: Path, keep_s: float, allow: Callable[[Mapping[str, float]], None]) -> None:
        self._path = folder / FILE_NAME
        self._keep_s = keep_s
        self._allow = allow
        self._shares: Mapping[str, float] = {}
        self._heard_unix_s = self._written_unix_s = 0.0

    def load(self, now_unix_s: float) -> None:
        """Load the shares stored before a restart."""
        try:
            found = read_json(self._path)
            heard_unix_s = float(found["heard_unix_s"])
            shares = read_wish(json.dumps({"shares": found["shares"]}).encode()).shares
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError):
            _log.warning("%s cannot be read: only the policy applies until the fleet service sends shares", self._path)
            return
        self._shares, self._heard_unix_s = shares, min(heard_unix_s, now_unix_s)
        self._allow(shares)
        self.check(now_unix_s)

    def take(self, shares: Mapping[str, float], now_unix_s: float) -> None:
        """Apply the service's shares. Raises `OSError` if they cannot be stored; they apply all the same."""
        if shares != self._shares:
            self._shares = dict(shares)
            self._allow(self._shares)
            self._write(now_unix_s)

    def heard(self, now_unix_s: float) -> None:
        """Note that the service answered, which renews the last shares. Raises `OSError`."""
        self._heard_unix_s = now_unix_s
        if self._shares and abs(now_unix_s - self._written_unix_s) >= _WRITE_S:
            self._write(now_unix_s)

    def check(self, now_unix_s: float) -> None:
        """Drop shares that have expired while the service was silent."""
        self._heard_unix_s = min(self._heard_unix_s, now_unix_s)
        if self._shares and now_unix_s - self._heard_unix_s > self._keep_s:
            _log.warning("the fleet service has been silent too long: its shares no longer apply, only the policy")
            self._shares = {}
            self._allow({})

    def _write(self, now_unix_s: float) -> None:
        self._heard_unix_s = self._written_unix_s = now_unix_s
        document = {"heard_unix_s": now_unix_s, "shares": dict(self._shares)}
        write_whole(self._path, json.dumps(document).encode(), 0o600)

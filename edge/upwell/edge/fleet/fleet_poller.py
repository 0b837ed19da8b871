"""The thread that polls a fleet service as long as the agent runs, whether the service is up or not."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

from upwell.edge.fleet import opamp_messages
from upwell.edge.fleet.device_facts import AgentView
from upwell.edge.fleet.device_identity import FleetIdentity
from upwell.edge.fleet.fleet_config import FleetSection
from upwell.edge.fleet.fleet_protocol import Conversation, KeptShares, Outgoing
from upwell.edge.fleet.opamp_messages import ServiceMessage, Unreadable
from upwell.edge.observe.agent_health import HealthPart
from upwell.shared.config.security import ClientSecurity, TlsFiles
from upwell.shared.errors import ConfigError
from upwell.shared.oip.auth.client_token import read_token
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind
from upwell.shared.oip.http.client.exchange import HttpsCaller, Received
from upwell.shared.opamp import CONTENT_TYPE, PATH
from upwell.shared.platform.background_thread import BackgroundThread

CALL_S = 20.0
"""Time limit for a complete answer to a poll."""

MAX_ANSWER_BYTES = 256 << 10
LONGEST_PAUSE_S = 900.0
MOST_RETRY_AFTER_S = 3600.0
SOON_S = 0.2
MOST_SOON = 8
"""Maximum number of consecutive polls without a pause when there is news."""

_SLOWEST_S, _FASTEST_S = 3600.0, 1.0
_REFUSED_OFTEN = 3
_log = logging.getLogger(__name__)


def pause_s(every_s: float, failures: int, retry_after_s: float | None, draw: float) -> float:
    """Seconds to the next poll: `every_s` ± 10 %, doubled for each failure in a row, and at least what the service asks
    for.

    `draw` is uniform in [0, 1), so that devices that start together do not poll together.
    """
    usual = min(every_s * 2.0 ** min(failures, 10), max(LONGEST_PAUSE_S, every_s))
    spread = (0.5 + 0.5 * draw) if failures else (0.9 + 0.2 * draw)
    asked = min(retry_after_s or 0.0, MOST_RETRY_AFTER_S)
    return max(usual * spread, asked * (1.0 + 0.1 * draw))


class FleetPoller:
    """Polls until `close`. Raises `ConfigError` for wrong files.

    The agent keeps answering while the service is down, slow, hostile or wrong: nothing waits for it, and the data held
    for it is bounded.
    """

    def __init__(self, section: FleetSection, view: AgentView, folder: Path) -> None:
        self._section = section
        self._identity = FleetIdentity(folder)
        self._shares = KeptShares(folder, section.keep_share, view.demand.allow)
        self._shares.load(time.time())
        self._conversation = Conversation(view, self._identity, self._shares, time.time_ns())
        self._every_s = section.every
        self._failures = self._refused = 0
        self._problem = ""
        self._last_heard_unix_s: float | None = None
        self._stop = threading.Event()
        self._caller(is_enrolled=False)  # reports wrong files at the start
        self._thread = BackgroundThread("fleet", self._loop, self._stop.is_set)
        self._thread.start()

    def close(self) -> None:
        """Sign off if that takes no time, and stop. Calling it twice is harmless."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join(CALL_S)
        if self._identity.is_enrolled and not self._failures and not self._thread.is_alive():
            with suppress(RemoteError, ConfigError):
                self._send(self._conversation.leave(), {}, 2.0)

    @property
    def instance_uid(self) -> str:
        """The device's instance UID as 32 hexadecimal digits."""
        return self._identity.instance_uid.hex()

    def describe(self) -> HealthPart:
        """The part of `/health` about the fleet. An unreachable service is not a problem of the agent."""
        facts: dict[str, Any] = {
            "endpoint": self._section.endpoint, "instance_uid": self.instance_uid,
            "enrolled": self._identity.is_enrolled, "last_heard_unix_s": self._last_heard_unix_s,
            "failures_in_a_row": self._failures, "problem": self._problem,
        }  # fmt: skip
        return HealthPart(facts)

    def caller(self) -> HttpsCaller | None:
        """A caller of the service as this device; None before it has enrolled and while the service cannot be reached.

        Raises `ConfigError` for wrong files.
        """
        if not self._identity.is_enrolled or self._failures or self._last_heard_unix_s is None:
            return None
        return self._caller(is_enrolled=True)

    def _loop(self) -> None:
        soon = 0
        wait_s = min(5.0, self._every_s) * random.random()  # noqa: S311  spreads polls, and is no secret
        while not self._stop.wait(wait_s):
            retry_after_s = self._poll()
            if not self._failures and self._conversation.has_news and soon < MOST_SOON:
                soon, wait_s = soon + 1, SOON_S
                continue
            soon = 0
            wait_s = pause_s(self._every_s, self._failures, retry_after_s, random.random())  # noqa: S311  as above

    def _poll(self) -> float | None:
        """Poll once; returns the seconds until the service wants the next poll, if it says so."""
        self._shares.check(time.time())
        shows_token = self._shows_token()
        try:
            headers = {"Authorization": f"Bearer {self._token()}"} if shows_token else {}
            outgoing = self._conversation.say(time.time(), is_enrolling=shows_token)
            received = self._send(outgoing.data, headers, CALL_S)
            if received.status != HTTPStatus.OK:
                return self._refusal(received, has_shown_token=shows_token)
            self._heard(opamp_messages.read(received.body, self._identity.instance_uid), outgoing)
        except (RemoteError, ConfigError, Unreadable, OSError) as error:
            if isinstance(error, RemoteError) and error.kind is RemoteErrorKind.UNAVAILABLE and not error.is_unsent:
                self._refused += not shows_token  # TLS 1.3 refuses a certificate of another authority so
            self._failed(str(error))
            return getattr(error, "retry_after_s", None)
        return None

    def _shows_token(self) -> bool:
        """Whether to poll with the token: to enrol, and every other time after failures of a certificate that seems to
        have expired or that the service refuses. It is kept, as most tokens are used up: the clock may be wrong, or for
        a while the service's database.
        """
        if not self._identity.is_enrolled:
            return True
        may_enrol = self._section.enrol_token_file is not None and self._failures % 2 == 1
        return may_enrol and (self._refused >= _REFUSED_OFTEN or self._identity.has_expired(time.time()))

    def _heard(self, told: ServiceMessage, outgoing: Outgoing) -> None:
        if told.error:
            raise Unreadable(told.error)
        was_enrolled = self._identity.is_enrolled
        self._conversation.hear(told, outgoing, time.time())
        if not self._identity.is_enrolled:
            raise Unreadable("the enrolment's answer has no certificate for this device")
        if not was_enrolled:
            _log.info("enrolled with the fleet service %s", self._section.endpoint)
        if told.poll_s is not None:
            self._every_s = min(_SLOWEST_S, max(_FASTEST_S, told.poll_s))
        if self._failures:
            _log.info("the fleet service is answering again")
        self._failures = self._refused = 0
        self._problem = ""
        self._last_heard_unix_s = time.time()

    def _refusal(self, received: Received, *, has_shown_token: bool) -> float | None:
        status, body = received.status, received.body
        try:
            told = opamp_messages.read(body[:MAX_ANSWER_BYTES], self._identity.instance_uid).error
        except Unreadable:
            told = ""
        if status == HTTPStatus.UNAUTHORIZED and not has_shown_token:
            self._refused += 1
        self._failed(f"it answered {status}: {told or 'no reason given'}")
        return received.retry_after_s

    def _failed(self, text: str) -> None:
        self._failures += 1
        if text != self._problem:
            _log.warning("fleet service %s: %s; the agent goes on without it", self._section.endpoint, text)
        self._problem = text

    def _token(self) -> str:
        if self._section.enrol_token_file is None:
            raise ConfigError.at(
                None,
                "not enrolled yet, and there is no token; expected a file with a one-time token",
                "fleet.enrol_token_file",
            )
        return read_token(self._section.enrol_token_file)

    def _send(self, data: bytes, headers: Mapping[str, str], timeout_s: float) -> Received:
        caller = self._caller(is_enrolled="Authorization" not in headers)
        return caller.call(
            "POST", PATH, headers={"Content-Type": CONTENT_TYPE, **headers}, body=data, timeout_s=timeout_s,
            max_bytes=MAX_ANSWER_BYTES,
        )  # fmt: skip

    def _caller(self, *, is_enrolled: bool) -> HttpsCaller:
        identity = self._identity
        files = TlsFiles(ca=self._section.ca)
        if is_enrolled:
            files = TlsFiles(identity.certificate_file, identity.key_file, self._section.ca)
        return HttpsCaller(self._section.endpoint, ClientSecurity(files))

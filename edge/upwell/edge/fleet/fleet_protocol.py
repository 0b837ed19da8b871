"""The protocol with a fleet service, without clock, socket or thread: messages to send and the handling of answers.

Fields that have not changed since the service last received them are left out (OpAMP's status compression). An
unanswered message counts as not sent: its content is sent again. Shares of a budget are stored over
restarts until they expire.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from upwell.edge.fleet import opamp_messages
from upwell.edge.fleet.device_facts import AgentView, DemandRates, ReleaseCounts, attributes, within_bytes
from upwell.edge.fleet.device_identity import FleetIdentity
from upwell.edge.fleet.opamp_messages import ServiceMessage
from upwell.edge.observe.shadow_release import ShadowNews
from upwell.rpc.opamp.v1 import opamp_pb2
from upwell.shared.errors import UpwellError
from upwell.shared.files import StateFile
from upwell.shared.opamp import DRIFT, EXPLAIN, SHADOW, STATISTICS, Wish, digest_of, read_wish

FILE_NAME = "shares.json"
_WRITE_S = 600.0
_log = logging.getLogger(__name__)


class KeptShares:
    """Shares by model, in `folder`. While the service is silent the last ones stay valid for `keep_s`; then only the
    device's own policy applies, until the service answers: it sends shares again only if they have changed. Times are
    Unix seconds; setting the clock back restarts that time.

    `allow` is called with the shares in force whenever they change. Used by one thread.
    """

    def __init__(self, folder: Path, keep_s: float, allow: Callable[[Mapping[str, float]], None]) -> None:
        loss = "only the policy applies until the fleet service sends shares"
        self._file = StateFile(folder / FILE_NAME, "the shares", loss)
        self._keep_s = keep_s
        self._allow = allow
        self._shares: Mapping[str, float] = {}
        self._has_expired = False
        self._heard_unix_s = self._written_unix_s = 0.0

    def load(self, now_unix_s: float) -> None:
        """Load the shares stored before a restart."""
        stored = self._file.read(_stored_shares, None)
        if stored is not None:
            self._shares, self._heard_unix_s = stored[0], min(stored[1], now_unix_s)
            self._allow(self._shares)
            self.check(now_unix_s)

    def take(self, shares: Mapping[str, float], now_unix_s: float) -> None:
        """Apply the service's shares. A failing disk is logged once; they apply all the same."""
        if shares != self._shares:
            self._shares = dict(shares)
            self._allow(self._shares)
            self._write(now_unix_s)

    def heard(self, now_unix_s: float) -> None:
        """Note that the service answered, which renews the last shares."""
        self._heard_unix_s = now_unix_s
        if self._has_expired:
            self._has_expired = False
            self._allow(self._shares)
        if self._shares and abs(now_unix_s - self._written_unix_s) >= _WRITE_S:
            self._write(now_unix_s)

    def check(self, now_unix_s: float) -> None:
        """Apply no shares that have expired while the service was silent."""
        self._heard_unix_s = min(self._heard_unix_s, now_unix_s)
        if self._shares and not self._has_expired and now_unix_s - self._heard_unix_s > self._keep_s:
            _log.warning("the fleet service has been silent too long: its shares no longer apply, only the policy")
            self._has_expired = True
            self._allow({})

    def _write(self, now_unix_s: float) -> None:
        self._heard_unix_s = self._written_unix_s = now_unix_s
        self._file.write({"heard_unix_s": now_unix_s, "shares": dict(self._shares)})


def _stored_shares(document: Any) -> tuple[Mapping[str, float], float]:
    """The shares, and when the service was last heard."""
    wish = read_wish(json.dumps({"shares": document["shares"]}).encode())
    return wish.shares, float(document["heard_unix_s"])


LARGEST_DRIFT = 16 << 10
"""Maximum size of a drift report (bytes); unchanged models are left out first."""
LARGEST_ANSWER = 48 << 10
"""Maximum size of an explanation (bytes); the last lines of a longer one are left out."""

_TYPES = {STATISTICS: "counted", DRIFT: "found", SHADOW: "lines"}


@dataclass
class Outgoing:
    """A message, and what the service knows once it has answered."""

    data: bytes
    said: dict[str, str]
    kind: str = ""
    answered: str = ""
    shadow: ShadowNews | None = None
    counts_said: Callable[[], None] = lambda: None


class Conversation:
    """The state of the conversation with the service. Used by one thread."""

    def __init__(self, view: AgentView, identity: FleetIdentity, shares: KeptShares, started_unix_ns: int) -> None:
        self._view = view
        self._identity = identity
        self._shares = shares
        self._started_unix_ns = started_unix_ns
        self._sequence_num = 0
        self._known: dict[str, str] = {}
        self._wish = Wish()
        # A new process has no wish: what it says of that makes the service send what it has sent before.
        self._wish_status = (b"", "unset", "")
        self._answers: dict[str, dict[str, Any]] = {}
        self._counts = ReleaseCounts(since_unix_s=started_unix_ns / 1e9)
        self._demand = DemandRates()
        self._said_at_unix_s: dict[str, float] = {}
        self._understands: frozenset[str] | None = None
        self._complained: set[str] = set()

    @property
    def has_news(self) -> bool:
        """Whether there is an answer or outcome that the service waits for."""
        return bool(self._answers) or self._differs("wish", self._wish_status)

    def say(self, now_unix_s: float, *, is_enrolling: bool = False) -> Outgoing:
        """The next message; when enrolling with a certificate request, without which a token is refused."""
        self._sequence_num += 1
        view, said = self._view, dict[str, str]()
        message = opamp_messages.start(self._identity.instance_uid, self._sequence_num)
        found = attributes(view, self._identity.instance_uid.hex())
        if self._is_news(said, "attributes", found):
            opamp_messages.put_description(message, found)
        document = view.health()
        models = {name: (one.get("state"), one.get("reason")) for name, one in document["models"].items()}
        seen = {"status": document.get("status"), "problems": document.get("problems"), "models": models}
        if self._is_news(said, "health", seen):
            opamp_messages.put_health(message, document, self._started_unix_ns)
        configuration = view.configuration()
        if self._is_news(said, "configuration", configuration):
            opamp_messages.put_configuration(message, configuration)
        release = None if view.release is None else view.release.status()
        if release is not None and self._is_news(said, "release", (release.sequence, release.phase, release.reason)):
            opamp_messages.put_release(message, release.sequence, release.phase, release.reason)
        if self._is_news(said, "wish", self._wish_status):
            opamp_messages.put_wish_status(message, *self._wish_status)
        if is_enrolling or self._identity.wants_certificate(now_unix_s):
            opamp_messages.put_request(message, self._identity.request())
        outgoing = Outgoing(b"", said)
        self._add_custom(message, outgoing, release.sequence or None if release is not None else None, now_unix_s)
        outgoing.data = message.SerializeToString()
        return outgoing

    def leave(self) -> bytes:
        """The last message."""
        self._sequence_num += 1
        message = opamp_messages.start(self._identity.instance_uid, self._sequence_num)
        message.agent_disconnect.SetInParent()
        return message.SerializeToString()

    def hear(self, told: ServiceMessage, outgoing: Outgoing, now_unix_s: float) -> None:
        """Process the answer to a message. A failing disk keeps nothing of it from taking effect now."""
        self._known |= outgoing.said
        self._answers.pop(outgoing.answered, None)
        if outgoing.shadow is not None and self._view.shadow is not None:
            self._view.shadow.told(outgoing.shadow)
        outgoing.counts_said()
        if outgoing.kind:
            self._said_at_unix_s[outgoing.kind] = now_unix_s
        self._understands = told.understands
        self._shares.heard(now_unix_s)
        if told.wants_full_state:
            self._known.clear()
        if told.certificate:
            self._take_certificate(told.certificate)
        for offer in told.ignored:
            self._complain(f"it offered {offer}, which no device accepts from a service")
        if told.wish is not None:
            self._heed(told.wish, told.wish_hash, now_unix_s)
        if told.question is not None:
            self._explain(*told.question)

    def _take_certificate(self, certificate: bytes) -> None:
        try:
            self._complain(self._identity.take(certificate))
        except OSError as error:
            self._complain(f"its certificate cannot be stored: {error.strerror}")

    def _add_custom(
        self, message: opamp_pb2.AgentToServer, outgoing: Outgoing, release: int | None, now_unix_s: float
    ) -> None:
        """Add one custom message, since there is room for one: an answer that the service waits for, else the kind it
        understands that was sent longest ago."""
        counts = self._counts.update(release, self._view.counts(), now_unix_s)
        if self._answers:
            outgoing.answered, answer = next(iter(self._answers.items()))
            opamp_messages.put_custom(message, EXPLAIN, "told", {"id": outgoing.answered, **answer})
            return
        kinds = (one for one in (STATISTICS, DRIFT, SHADOW) if self._understands is None or one in self._understands)
        for kind in sorted(kinds, key=lambda one: self._said_at_unix_s.get(one, -math.inf)):
            body = {
                STATISTICS: lambda: self._counted(counts, outgoing, now_unix_s),
                DRIFT: lambda: self._drifted(outgoing.said, now_unix_s),
                SHADOW: lambda: self._shadowed(outgoing),
            }[kind]()
            if body is not None:
                outgoing.kind = kind
                opamp_messages.put_custom(message, kind, _TYPES[kind], body)
                return

    def _is_time(self, kind: str, now_unix_s: float) -> bool:
        """Whether the kind is due, also after the clock was set back."""
        said_at_unix_s = self._said_at_unix_s.get(kind, -math.inf)
        return not 0.0 <= now_unix_s - said_at_unix_s < self._wish.statistics_s

    def _counted(self, counts: dict[str, int], outgoing: Outgoing, now_unix_s: float) -> dict[str, Any] | None:
        if not self._is_time(STATISTICS, now_unix_s):
            return None
        demand, outgoing.counts_said = self._demand.rates(self._view, time.monotonic())
        return {
            "release": self._counts.release, "since_unix_s": self._counts.since_unix_s,
            "counts": {**counts, "now": self._view.now()}, "demand": demand,
        }  # fmt: skip

    def _drifted(self, said: dict[str, str], now_unix_s: float) -> dict[str, Any] | None:
        """What is new about drift: findings at once, figures as often as statistics."""
        models = within_bytes(self._view.drift(), LARGEST_DRIFT)
        has_found = self._is_news(said, "findings", {name: one.get("findings") for name, one in models.items()})
        if has_found or self._is_time(DRIFT, now_unix_s):
            return {"models": models} if self._is_news(said, "drift", models) else None
        return None

    def _shadowed(self, outgoing: Outgoing) -> dict[str, Any] | None:
        news = None if self._view.shadow is None else self._view.shadow.news()
        if news is None:
            return None
        outgoing.shadow = news
        return {"release": news.release, "lines": [json.loads(one) for one in news.lines], "problem": news.problem}

    def _differs(self, name: str, value: object) -> bool:
        return value is not None and self._known.get(name) != _digest(value)

    def _is_news(self, said: dict[str, str], name: str, value: object) -> bool:
        if not self._differs(name, value):
            return False
        said[name] = _digest(value)
        return True

    def _heed(self, body: bytes, wish_hash: bytes, now_unix_s: float) -> None:
        """Apply the service's request, or report why not. It can do no more than choose among signed releases."""
        try:
            if wish_hash != digest_of(body):
                raise ValueError("its hash does not match its content")
            wish = read_wish(body)
            self._shares.take(
                wish.shares, now_unix_s
            )  # even if the release is refused: shares can only tighten the policy
            if self._view.release is not None:
                self._view.release.choose(wish.release, wish.not_before_unix_s, wish.shadow)
            elif wish.release is not None or wish.shadow is not None:
                raise ValueError("agent.yaml has no `release` section, so no release can be chosen")
        except (ValueError, UpwellError) as error:
            self._wish_status = (wish_hash, "failed", str(error))
            self._complain(f"its configuration is refused: {error}")
        else:
            self._wish, self._wish_status = wish, (wish_hash, "applied", "")

    def _explain(self, question_id: str, request_id: str) -> None:
        try:
            sections = [(title, list(lines)) for title, lines in self._view.explain(request_id)]
            while len(json.dumps(sections)) > LARGEST_ANSWER and sections:
                lines = sections[-1][1]
                if not lines:
                    sections.pop()
                else:
                    lines.pop()
            self._answers = {question_id: {"sections": sections}}
        except (UpwellError, OSError) as error:
            self._answers = {question_id: {"error": str(error)}}

    def _complain(self, text: str) -> None:
        """Log once a problem with the service."""
        if text and text not in self._complained and len(self._complained) < 100:
            self._complained.add(text)
            _log.warning("the fleet service: %s", text)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=repr).encode()).hexdigest()

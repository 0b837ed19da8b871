"""Handles a poll: identifies the device, records its report, and composes the reply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from upwell.fleet.enrolment.certificate_authority import IssuedCertificate, read_request
from upwell.fleet.enrolment.enrolment import Enrolment
from upwell.fleet.opamp.opamp_messages import ConnectionSettings, Incoming, PollReply
from upwell.fleet.registry.device_presence import Presence
from upwell.fleet.registry.device_questions import OpenQuestions, answer
from upwell.fleet.registry.device_reports import Report, apply, changes_of
from upwell.fleet.registry.devices import Stored, by_certificate
from upwell.fleet.registry.groups import Assignments
from upwell.fleet.registry.shadow_releases import keep_lines
from upwell.fleet.storage.database import Database
from upwell.shared.errors import Unauthenticated
from upwell.shared.opamp import EXPLAIN, RELEASE_PACKAGE, STATISTICS_S, Wish, digest_of, new_instance_uid

BUDGET_POLLS = 5
"""A device with a share of a budget reports its demand in one of this many polls."""


@dataclass(frozen=True)
class Peer:
    """How a device proves itself: the serial number of a certificate that TLS has verified, or an enrolment token."""

    serial: str = ""
    token: str = ""


@dataclass(frozen=True)
class Instant:
    """The current time by both clocks."""

    unix_s: float
    monotonic_s: float


@dataclass(frozen=True)
class FleetState:
    """The state shared by polls and the REST interface."""

    database: Database
    enrolment: Enrolment
    presence: Presence
    assignments: Assignments
    questions: OpenQuestions


class PollHandler:
    """Answers polls. Thread-safe."""

    def __init__(self, state: FleetState, settings: ConnectionSettings, now: Callable[[], Instant]) -> None:
        self._state = state
        self._settings = settings
        self._now = now

    def answer(self, poll: Incoming, peer: Peer) -> PollReply:
        """The reply to the device. Raises `Unauthenticated` and `NotAllowed`, and `InvalidRequest` for an invalid
        CSR.
        """
        now = self._now()
        device, certificate = self._device(poll, peer, now)
        report, presence = poll.report, self._state.presence
        heard = presence.heard(device["id"], report.sequence_num, now.unix_s, device["last_seen_unix_s"])
        if report.counted is not None:
            presence.counted(device["id"], now.unix_s, report.counted)
        if report.drift is not None:  # before the immediate write, so that no batch overwrites it with older drift
            presence.drifted(device["id"], report.drift)
        if certificate is None:
            self._note(device, poll, now)
        is_unknown = not device["attributes"] and report.attributes is None
        is_told = poll.accepts_settings and (heard.is_first or certificate is not None)
        settings = ConnectionSettings(
            self._settings.url, self._settings.poll_s, self._settings.authority_pem, certificate
        )
        return PollReply(
            instance_uid=report.instance_uid,
            new_instance_uid=new_instance_uid(now.unix_s).bytes if poll.wants_uid else b"",
            wants_full_state=is_unknown or (heard.wants_full_state and report.attributes is None),
            wish=self._wish(device, poll, now),
            settings=settings if is_told else None,
            question=self._question(device, poll, now),
        )

    def _device(self, poll: Incoming, peer: Peer, now: Instant) -> tuple[Stored, IssuedCertificate | None]:
        """The device that polls, and its new certificate if any. Its report is written in the same transaction."""
        database, enrolment = self._state.database, self._state.enrolment
        if not peer.serial and not (peer.token and poll.csr):
            raise Unauthenticated("a device enrols with its token and a certificate signing request in one message")
        if poll.csr:
            request = read_request(poll.csr)
            with database.writing() as connection:
                if peer.serial:
                    device = _held(by_certificate(connection, peer.serial))
                    certificate = enrolment.renew(connection, device, request, now.unix_s)
                else:
                    device, certificate = enrolment.enrol(connection, peer.token, request, now.unix_s)
                apply(connection, device, poll.report, now.unix_s)
                device = _held(by_certificate(connection, certificate.serial))  # its groups go by what it reported
            return device, certificate
        with database.reading() as connection:
            return _held(by_certificate(connection, peer.serial)), None

    def _note(self, device: Stored, poll: Incoming, now: Instant) -> None:
        report, explained = poll.report, poll.report.explained
        changed, happened = changes_of(device, report, now.unix_s)
        shadowed = report.shadowed
        if not changed and not happened and explained is None and shadowed is None:
            return
        with self._state.database.writing() as connection:
            apply(connection, device, report, now.unix_s)
            if explained is not None:
                answer(connection, device["id"], explained, now.unix_s)
            if shadowed is not None:
                keep_lines(connection, device, shadowed, now.unix_s)
        if explained is not None:
            self._state.questions.answered(device["id"])

    def _wish(self, device: Stored, poll: Incoming, now: Instant) -> bytes | None:
        """What is wanted of the device, if it has not heard of that yet."""
        if not poll.accepts_configuration:
            return None
        found = self._state.assignments.wanted(device, now.monotonic_s)
        pace_s = STATISTICS_S if device["rollout"] is None else self._settings.poll_s
        if device["shares"] is not None:
            pace_s = min(pace_s, BUDGET_POLLS * self._settings.poll_s)
        wish = Wish(
            release=_running(device, poll.report) if found.conflict else found.release,
            not_before_unix_s=found.not_before_unix_s, shadow=device["shadow"],
            statistics_s=pace_s, shares=device["shares"] or {},
        ).encode()  # fmt: skip
        status = poll.report.configuration_status
        known = device["config_hash"] if status is None else status.config_hash
        return None if known == digest_of(wish).hex() else wish

    def _question(self, device: Stored, poll: Incoming, now: Instant) -> tuple[str, str] | None:

        if not poll.can_explain and EXPLAIN not in device["custom_capabilities"]:
            return None
        return self._state.questions.next_for(device["id"], now.monotonic_s, now.unix_s)


def _running(device: Stored, report: Report) -> int | None:
    """The release that a device runs, 0 for what its own agent.yaml names; None if it has not said."""
    packages, release = device["packages"], device["release"]
    if report.packages is not None:
        packages, release = report.packages, report.release
    return (release or 0) if RELEASE_PACKAGE in (packages or {}) else None


def _held(device: Stored | None) -> Stored:
    if device is None:
        raise Unauthenticated("this certificate is unknown here or was revoked")
    return device

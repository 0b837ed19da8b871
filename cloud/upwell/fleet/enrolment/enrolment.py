"""Enrolment: exchanges a one-time token for a certificate, and renews certificates before they expire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from upwell.fleet.enrolment.certificate_authority import Authority, IssuedCertificate, SigningRequest
from upwell.fleet.errors import NotFound
from upwell.fleet.registry.device_events import note_event
from upwell.fleet.registry.devices import Stored
from upwell.fleet.storage.database import Row, all_rows, one_row
from upwell.fleet.storage.tables import CERTIFICATES, DEVICES, ENROLMENT_TOKENS
from upwell.fleet.users import Actor, digest_of, new_id, new_secret, record_audit
from upwell.shared.errors import NotAllowed, Refused, Unauthenticated

DEFAULT_TOKEN_S = 86400.0
MOST_AN_HOUR = 10
"""Maximum number of certificates for one device per hour."""


def add_token(connection: Connection, actor: Actor, labels: Mapping[str, str], valid_s: float) -> dict[str, Any]:
    """A token that enrols one device within `valid_s` and gives it these labels; shown only once."""
    token, token_id = new_secret("upwe"), new_id()
    expires = actor.now_unix_s + valid_s
    connection.execute(
        insert(ENROLMENT_TOKENS).values(
            id=token_id, token_sha256=digest_of(token), labels=dict(labels), created_unix_s=actor.now_unix_s,
            created_by=actor.name, expires_unix_s=expires,
        )
    )  # fmt: skip
    record_audit(connection, actor, "add token", token_id, {"labels": dict(labels)})
    return {"id": token_id, "token": token, "expires_unix_s": expires}


def drop_token(connection: Connection, actor: Actor, token_id: str) -> None:
    """Revoke an unused token. Raises `NotFound`."""
    unused = (ENROLMENT_TOKENS.c.id == token_id) & ENROLMENT_TOKENS.c.used_unix_s.is_(None)
    if not connection.execute(delete(ENROLMENT_TOKENS).where(unused)).rowcount:
        raise NotFound(f"no unused token {token_id!r}")
    record_audit(connection, actor, "drop token", token_id)


def all_tokens(connection: Connection) -> Sequence[Row]:
    """The tokens without their secrets, the newest first."""
    return all_rows(connection,
        select(
            ENROLMENT_TOKENS.c.id, ENROLMENT_TOKENS.c.labels, ENROLMENT_TOKENS.c.created_unix_s,
            ENROLMENT_TOKENS.c.created_by, ENROLMENT_TOKENS.c.expires_unix_s, ENROLMENT_TOKENS.c.used_unix_s,
        ).order_by(ENROLMENT_TOKENS.c.created_unix_s.desc())
    )  # fmt: skip


class Enrolment:
    """Admits devices. Each method runs in the caller's transaction; `age_s` is the validity of certificates."""

    def __init__(self, authority: Authority, age_s: float) -> None:
        self._authority = authority
        self._age_s = age_s

    def enrol(
        self, connection: Connection, token: str, request: SigningRequest, now_unix_s: float
    ) -> tuple[Stored, IssuedCertificate]:
        """Exchange a token for a certificate.

        The same key may present its token again, since the reply may have been lost. Raises `Unauthenticated` for a
        token that is unknown, used or expired, `NotAllowed` for a revoked key.
        """
        digest = digest_of(token)
        found = one_row(connection,
            select(ENROLMENT_TOKENS).where(ENROLMENT_TOKENS.c.token_sha256 == digest)
        )  # fmt: skip
        if found is None or found["expires_unix_s"] < now_unix_s:
            raise Unauthenticated("the enrolment token is unknown or has expired")
        taken = connection.execute(
            update(ENROLMENT_TOKENS)
            .where(ENROLMENT_TOKENS.c.id == found["id"])
            .where(
                ENROLMENT_TOKENS.c.used_unix_s.is_(None) | (ENROLMENT_TOKENS.c.used_by_key_sha256 == request.key_sha256)
            )
            .values(used_unix_s=now_unix_s, used_by_key_sha256=request.key_sha256)
        )
        if not taken.rowcount:
            raise Unauthenticated("the enrolment token was used by another device")
        device = self._device_of(connection, request, found["labels"], now_unix_s)
        return device, self.renew(connection, device, request, now_unix_s)

    def renew(
        self, connection: Connection, device: Stored, request: SigningRequest, now_unix_s: float
    ) -> IssuedCertificate:
        """Another certificate for the same key.

        Raises `NotAllowed` for another key, which would belong to another device, and `Refused` for too many.
        """
        if request.key_sha256 != device["key_sha256"]:
            raise NotAllowed("the request is for another key than the device enrolled with; enrol the device again")
        recent = (CERTIFICATES.c.device_id == device["id"]) & (CERTIFICATES.c.issued_unix_s > now_unix_s - 3600.0)
        if (connection.scalar(select(func.count()).select_from(CERTIFICATES).where(recent)) or 0) >= MOST_AN_HOUR:
            raise Refused(f"this device got {MOST_AN_HOUR} certificates within an hour")
        certificate = self._authority.sign_device(request, device["id"], now_unix_s, self._age_s)
        connection.execute(
            insert(CERTIFICATES).values(
                serial=certificate.serial, device_id=device["id"], issued_unix_s=now_unix_s,
                expires_unix_s=certificate.expires_unix_s,
            )
        )  # fmt: skip
        return certificate

    def _device_of(
        self, connection: Connection, request: SigningRequest, labels: Mapping[str, str], now_unix_s: float
    ) -> Stored:
        by_key = select(DEVICES).where(DEVICES.c.key_sha256 == request.key_sha256)
        known = one_row(connection, by_key)
        if known is not None:
            if known["revoked_unix_s"] is not None:
                raise NotAllowed("this device was revoked; it needs a new key to enrol again")
            return known
        device_id = new_id()
        connection.execute(
            insert(DEVICES).values(
                id=device_id, name=device_id, instance_uid="", key_sha256=request.key_sha256, labels=dict(labels),
                reported_labels={}, attributes={}, capabilities=0, custom_capabilities=[], config_hash="",
                config_status="unset", config_error="", started_unix_ns=0, former_started_unix_ns=0,
                enrolled_unix_s=now_unix_s, last_seen_unix_s=now_unix_s,
            )
        )  # fmt: skip
        note_event(connection, device_id, now_unix_s, [("enrolled", "the device was enrolled")])
        found = one_row(connection, by_key)
        assert found is not None  # noqa: S101  it was written just now, in this transaction
        return found

"""Login sessions: a signed cookie, valid at every replica until it expires or the user is removed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass

from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from upwell.fleet.storage.database import Database
from upwell.fleet.storage.tables import FACTS, USERS
from upwell.fleet.users.users import User

COOKIE = "__Host-upwell-fleet"
"""The prefix makes browsers accept it only over TLS and only for this host."""

SESSION_S = 12 * 3600.0
_FACT = "dashboard key"


@dataclass(frozen=True)
class Session:
    """A logged-in user; every change must carry `csrf`."""

    user: User
    csrf: str


class Sessions:
    """Issues and checks cookies. The key is in the database, so replicas share it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._key = _key(database)

    def begin(self, user: User, now_unix_s: float) -> str:
        """The value of a new session's cookie."""
        facts = {"user": user.name, "token": self._stored(user.name)[1][:16], "until": now_unix_s + SESSION_S}
        body = base64.urlsafe_b64encode(json.dumps({**facts, "nonce": secrets.token_hex(8)}).encode()).decode()
        return f"{body}.{self._sign('session', body)}"

    def session(self, cookie: str, now_unix_s: float) -> Session | None:
        """The session of a cookie; None if it is forged or expired, or if the user now has another token."""
        body, _, signature = cookie.partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign("session", body).encode()):
            return None
        facts = json.loads(base64.urlsafe_b64decode(body))
        user, token = self._stored(facts["user"])
        if user is None or facts["until"] < now_unix_s or token[:16] != facts["token"]:
            return None
        return Session(user, self._sign("csrf", body))

    def _stored(self, name: str) -> tuple[User | None, str]:
        with self._database.reading() as connection:
            row = connection.execute(select(USERS.c.role, USERS.c.token_sha256).where(USERS.c.name == name)).first()
        return (None, "") if row is None else (User(name, row.role), row.token_sha256)

    def _sign(self, purpose: str, body: str) -> str:
        return hmac.new(self._key, f"{purpose} {body}".encode(), hashlib.sha256).hexdigest()


def _key(database: Database) -> bytes:
    known = select(FACTS.c.value).where(FACTS.c.name == _FACT)
    with database.reading() as connection:
        found = connection.scalar(known)
    if found is None:
        try:
            with database.writing() as connection:
                connection.execute(insert(FACTS).values(name=_FACT, value=secrets.token_hex(32)))
        except IntegrityError:
            pass  # another replica was first
        with database.reading() as connection:
            found = connection.scalar(known)
    return bytes.fromhex(str(found))

"""Who calls: the bearer token of a request, looked up among the known ones."""

from __future__ import annotations

import hashlib
import hmac
from http import HTTPStatus
from pathlib import Path

from upwell.shared.oip.http.replies import STATUS_HEADER, Rejected
from upwell.shared.oip.tokens import load_tokens
from upwell.shared.oip.watched import WatchedFiles

MAX_TOKEN_CHARACTERS = 4096


class KnownTokens:
    """The tokens of a `tokens.yaml`, read again when it changes. Raises `ConfigError` where the file is wrong now."""

    def __init__(self, path: Path) -> None:
        self._config = WatchedFiles([path], lambda: load_tokens(path))

    def name_for(self, authorization: str) -> str:
        """The name of the token in an `Authorization` header. Raises `Rejected` (401)."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_CHARACTERS:
            raise _refusal("this server needs a token: send the header `Authorization: Bearer <token>`")
        digest = hashlib.sha256(token.encode("latin-1", "replace")).hexdigest()
        found = None
        # No early end: the time taken must not tell which entry, or how much of it, was right.
        for entry in self._config.get().tokens:
            if hmac.compare_digest(entry.sha256, digest):
                found = entry.name
        if found is None:
            raise _refusal("the token is not known here")
        return found


def _refusal(text: str) -> Rejected:
    return Rejected(HTTPStatus.UNAUTHORIZED, text, ((STATUS_HEADER, "UNAUTHENTICATED"),))

"""Who calls: the bearer token of a request, looked up among the known ones, or else the client's certificate."""

from __future__ import annotations

from http import HTTPStatus

from upwell.shared.oip.auth.callers import Caller
from upwell.shared.oip.auth.tokens import KnownTokens
from upwell.shared.oip.http.replies import STATUS_HEADER, Rejected

MAX_TOKEN_CHARACTERS = 4096


def caller_for(known: KnownTokens, authorization: str | None, certificate: str) -> Caller:
    """Who sent a request with that `Authorization` header (None: without) over a connection whose client showed a
    certificate of that name (empty: none). Raises `Rejected` (401).
    """
    if authorization is None:
        found = known.holder_of(certificate)
        if found is None:
            raise _needs_token()
        return found
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_CHARACTERS:
        raise _needs_token()
    found = known.caller_of(token.encode("latin-1", "replace"))
    if found is None:
        raise _refusal("the token is not known here")
    return found


def _needs_token() -> Rejected:
    return _refusal("this server needs a token: send the header `Authorization: Bearer <token>`")


def _refusal(text: str) -> Rejected:
    return Rejected(HTTPStatus.UNAUTHORIZED, text, ((STATUS_HEADER, "UNAUTHENTICATED"),))

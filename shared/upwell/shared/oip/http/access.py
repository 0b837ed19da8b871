"""Who calls: the bearer token of a request, looked up among the known ones."""

from __future__ import annotations

from http import HTTPStatus

from upwell.shared.oip.http.replies import STATUS_HEADER, Rejected
from upwell.shared.oip.tokens import KnownTokens

MAX_TOKEN_CHARACTERS = 4096


def name_for(known: KnownTokens, authorization: str) -> str:
    """The name of the token in an `Authorization` header. Raises `Rejected` (401)."""
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_CHARACTERS:
        raise _refusal("this server needs a token: send the header `Authorization: Bearer <token>`")
    found = known.name_of(token.encode("latin-1", "replace"))
    if found is None:
        raise _refusal("the token is not known here")
    return found


def _refusal(text: str) -> Rejected:
    return Rejected(HTTPStatus.UNAUTHORIZED, text, ((STATUS_HEADER, "UNAUTHENTICATED"),))

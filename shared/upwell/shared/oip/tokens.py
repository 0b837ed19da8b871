"""Bearer tokens: the server's file of known ones, the check before every method, and the client's own token."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import grpc
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from upwell.shared.errors import ConfigError, Unauthenticated
from upwell.shared.files import read_file
from upwell.shared.oip.statuses import STATUSES
from upwell.shared.oip.watched import WatchedFiles
from upwell.shared.yaml import load_yaml

OPEN_METHODS = frozenset({"/grpc.health.v1.Health/Check", "/inference.GRPCInferenceService/ServerLive"})
"""Methods that probes may call without a token. They say nothing about models."""

# gRPC runs the interceptors and the handler of one call in one context of their own.
_token_name: ContextVar[str] = ContextVar("token_name", default="")


def token_name() -> str:
    """The name of the token the current call came with, in the thread that handles it; empty without one."""
    return _token_name.get()


class TokenEntry(BaseModel):
    """One token that is let in, known by its hash alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, StringConstraints(min_length=1, max_length=100)] = Field(
        description="Who calls with it; appears in logs."
    )
    sha256: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")] = Field(
        description="SHA-256 of the token's UTF-8 text, 64 lower-case hexadecimal digits."
    )


class TokensConfig(BaseModel):
    """`tokens.yaml`: who may call this server."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = Field(1, description="Version of this file format.")
    tokens: tuple[TokenEntry, ...] = Field(default=(), description="The tokens that are let in.")

    @field_validator("tokens")
    @classmethod
    def _names_differ(cls, tokens: tuple[TokenEntry, ...]) -> tuple[TokenEntry, ...]:
        names = [token.name for token in tokens]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"the name {name!r} is given twice; each token needs its own")
        return tokens


def load_tokens(path: Path) -> TokensConfig:
    """Read a `tokens.yaml`. Raises `ConfigError` that says what was expected, but not what was found."""
    try:
        return load_yaml(path, TokensConfig)
    except ConfigError as error:
        # Whoever wrote a token where its hash belongs must not find it in a log as well.
        problems = [replace(problem, message=problem.message.partition(", got ")[0]) for problem in error.problems]
        raise ConfigError(problems) from None


class KnownTokens:
    """The tokens of a `tokens.yaml`, read again when it changes. Raises `ConfigError` where the file is wrong now."""

    def __init__(self, path: Path) -> None:
        self._config = WatchedFiles([path], lambda: load_tokens(path))

    def name_of(self, token: bytes) -> str | None:
        """The name of a token; None for one that is not known."""
        digest = hashlib.sha256(token).hexdigest()
        found = None
        # No early end: the time taken must not tell which entry, or how much of it, was right.
        for entry in self._config.get().tokens:
            if hmac.compare_digest(entry.sha256, digest):
                found = entry.name
        return found


class TokenInterceptor(grpc.ServerInterceptor):
    """Refuses every call without a known token, but for `OPEN_METHODS`. The file is read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._known = KnownTokens(path)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Let the call pass, its token's name noted, or answer UNAUTHENTICATED."""
        if handler_call_details.method in OPEN_METHODS:
            return continuation(handler_call_details)
        token = _bearer(handler_call_details.invocation_metadata)
        if token is None:
            return _refusal("this server needs a token: send the metadata `authorization: Bearer <token>`")
        name = self._known.name_of(token)
        if name is None:
            return _refusal("the token is not known here")
        _token_name.set(name)
        return continuation(handler_call_details)


def _bearer(metadata: Sequence[tuple[str, str | bytes]] | None) -> bytes | None:
    for key, value in metadata or ():
        if key == "authorization":
            data = value.encode() if isinstance(value, str) else value
            scheme, _, token = data.partition(b" ")
            if scheme.lower() == b"bearer" and token:
                return token.strip()
    return None


def _refusal(text: str) -> grpc.RpcMethodHandler[Any, Any]:
    def refuse(_: Any, context: grpc.ServicerContext) -> None:
        context.abort(STATUSES[Unauthenticated], text)

    # Of the stream kind whatever the method is: it answers before a message has been received.
    return grpc.stream_stream_rpc_method_handler(refuse)


def read_token(path: Path) -> str:
    """The token in a client's token file: one line of visible ASCII. Raises `ConfigError`, which does not show it."""
    data = read_file(path, "the token", max_bytes=4096).strip()
    if not data or any(not 0x21 <= byte <= 0x7E for byte in data):
        raise ConfigError.at(path, "expected one token of visible ASCII characters, without spaces, and nothing else")
    return data.decode("ascii")

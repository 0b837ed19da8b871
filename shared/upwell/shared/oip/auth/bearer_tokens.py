"""Bearer tokens: the server's tokens.yaml, and the check before every method."""

from __future__ import annotations

import fnmatch
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import grpc
from pydantic import Field, StringConstraints, field_validator

from upwell.shared.config.security import ServerSecurity
from upwell.shared.config.yaml import FilePart, load_yaml
from upwell.shared.errors import ConfigError, Unauthenticated
from upwell.shared.oip.auth.caller import ANONYMOUS, Caller, Grant, certificate_name, set_caller
from upwell.shared.oip.auth.limit_keys import UNLIMITED, Limits
from upwell.shared.oip.error_statuses import STATUSES, note_error_answer
from upwell.shared.platform.watched_files import WatchedFiles

OPEN_METHODS = frozenset({"/grpc.health.v1.Health/Check", "/inference.GRPCInferenceService/ServerLive"})
"""Methods that probes may call without a token; they then reveal nothing about models."""

REST_S = 2.0
"""How long a tokens.yaml that is written in place must not have changed: half of it may lack the limits of an entry, or
entries.
"""

_UNKNOWN = "this server requires a token: send the metadata `authorization: Bearer <token>`"


class _Entry(FilePart):
    models: tuple[Annotated[str, StringConstraints(min_length=1, max_length=200)], ...] | None = Field(
        None, description="Models it may use, as globs such as `digits-*`. Default: all."
    )
    control: bool = Field(False, description="May load and unload its models, if the service allows that.")
    limits: Limits = Field(UNLIMITED, description="What it may ask for, over the server's `limits`.")
    results: Literal["own", "all"] = Field(
        "own", description="Results it may read: of its own cases, or of all cases of its models."
    )

    @property
    def grant(self) -> Grant:
        """The entry in the form that the checks use."""
        return Grant(self.models, self.control, self.limits, self.results == "all")


class TokenEntry(_Entry):
    """Tokens that are admitted, stored only as hashes."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=100)] = Field(
        description="Name of the caller; appears in logs."
    )
    sha256: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")] = Field(
        description="SHA-256 of the token's text, in lower-case hex."
    )


class ClientEntry(_Entry):
    """Client certificates admitted without a token; needs a client CA. The first matching entry applies."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=200)] = Field(
        description="Common name, or a glob such as `camera-*`; each name has its own limits."
    )


class TokensConfig(FilePart):
    """`tokens.yaml`: who may call this server."""

    version: Literal[1] = Field(1, description="Version of this file format.")
    tokens: tuple[TokenEntry, ...] = ()
    clients: tuple[ClientEntry, ...] = ()

    @field_validator("tokens")
    @classmethod
    def _all_differ(cls, tokens: tuple[TokenEntry, ...]) -> tuple[TokenEntry, ...]:
        names: set[str] = set()
        hashes: set[str] = set()
        for token in tokens:
            if token.name in names:
                raise ValueError(f"the name {token.name!r} is repeated; each token needs its own")
            if token.sha256 in hashes:
                raise ValueError(f"the token of {token.name!r} is repeated; it can have only one entry")
            names.add(token.name)
            hashes.add(token.sha256)
        return tokens


def load_tokens(path: Path) -> TokensConfig:
    """Read a `tokens.yaml`. Raises `ConfigError` that says what was expected, but not what was found."""
    try:
        return load_yaml(path, TokensConfig)
    except ConfigError as error:
        # If a token was written in place of its hash, it must not appear in a log as well.
        problems = [replace(problem, message=problem.message.partition(", got ")[0]) for problem in error.problems]
        raise ConfigError(problems) from None


@dataclass(frozen=True)
class _Known:
    by_digest: Mapping[str, Caller]
    clients: Sequence[tuple[str, Grant]]


class KnownTokens:
    """The callers admitted by a `tokens.yaml`, reloaded on change. Raises `ConfigError` if it is wrong now.

    `asks_certificates` says that clients present certificates; without it, entries of `clients` could admit nobody and
    are refused.
    """

    def __init__(self, path: Path, *, asks_certificates: bool) -> None:
        self._known = WatchedFiles([path], lambda: _known(path, asks_certificates), REST_S)

    def caller_of(self, token: bytes) -> Caller | None:
        """The caller with that token; None if it is unknown."""
        # The timing of the look-up reveals something of the hash, which nobody can choose or invert.
        return self._by_digest(hashlib.sha256(token).hexdigest())

    def _by_digest(self, digest: str) -> Caller | None:
        known = self._known.get().by_digest.get(digest)
        return None if known is None else replace(known, renew=lambda: self._by_digest(digest))

    def holder_of(self, certificate: str) -> Caller | None:
        """The caller with a certificate of that common name and no token; None if it is not admitted."""
        for name, grant in self._known.get().clients if certificate else ():
            if fnmatch.fnmatchcase(certificate, name):
                renew = functools.partial(self.holder_of, certificate)
                return Caller(certificate, f"certificate:{certificate}", grant, renew)
        return None

    @property
    def has_clients(self) -> bool:
        """Whether any caller is admitted without a token."""
        return bool(self._known.get().clients)


def known_tokens(security: ServerSecurity) -> KnownTokens | None:
    """The callers admitted by the server's `tokens.yaml`; None if it has none. Raises `ConfigError`."""
    if security.tokens is None:
        return None
    return KnownTokens(security.tokens, asks_certificates=security.tls is not None and security.tls.ca is not None)


def _known(path: Path, asks_certificates: bool) -> _Known:
    config = load_tokens(path)
    if config.clients and not asks_certificates:
        raise ConfigError.at(path, "clients send certificates only if the server's TLS has a client CA", "clients")
    return _Known(
        {one.sha256: Caller(one.name, f"token:{one.name}", one.grant) for one in config.tokens},
        [(one.name, one.grant) for one in config.clients],
    )


class TokenInterceptor(grpc.ServerInterceptor):
    """Refuses every call without a known token or certificate, except `OPEN_METHODS`. See `KnownTokens`."""

    def __init__(self, known: KnownTokens) -> None:
        self._known = known

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Record the caller and let the call pass, or answer UNAUTHENTICATED."""
        token = _bearer(handler_call_details.invocation_metadata)
        caller = self._known.caller_of(token) if token is not None else None
        if caller is None and handler_call_details.method in OPEN_METHODS:
            caller = ANONYMOUS
        if caller is not None:
            set_caller(caller)
            return continuation(handler_call_details)
        if token is None and self._known.has_clients:
            return self._by_certificate(continuation(handler_call_details))
        return _refusal(_UNKNOWN if token is None else "the token is not known here")

    def _by_certificate(
        self, handler: grpc.RpcMethodHandler[Any, Any] | None
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The same method for admitted certificates; the certificate is known only within the call."""
        if handler is None:
            return None
        sides = ("stream" if one else "unary" for one in (handler.request_streaming, handler.response_streaming))
        kind = "_".join(sides)
        behaviour = getattr(handler, kind)

        @functools.wraps(behaviour)
        def checked(request: Any, context: grpc.ServicerContext, *more: Any) -> Any:
            caller = self._known.holder_of(certificate_name(context))
            if caller is None:
                _refuse(context, _UNKNOWN)
            set_caller(caller)
            return behaviour(request, context, *more)

        make = getattr(grpc, f"{kind}_rpc_method_handler")
        made: grpc.RpcMethodHandler[Any, Any] = make(checked, handler.request_deserializer, handler.response_serializer)
        return made


def _bearer(metadata: Sequence[tuple[str, str | bytes]] | None) -> bytes | None:
    if sum(key == "authorization" for key, _ in metadata or ()) > 1:
        return b""  # with two headers, it is unclear which one is meant
    for key, value in metadata or ():
        if key == "authorization":
            data = value.encode() if isinstance(value, str) else value
            scheme, _, token = data.partition(b" ")
            if scheme.lower() == b"bearer" and token:
                return token.strip()
    return None


def _refusal(text: str) -> grpc.RpcMethodHandler[Any, Any]:
    def refuse(_: Any, context: grpc.ServicerContext) -> None:
        _refuse(context, text)

    # A stream handler whatever the method is, since it answers before a message was received.
    return grpc.stream_stream_rpc_method_handler(refuse)


def _refuse(context: grpc.ServicerContext, text: str) -> NoReturn:
    note_error_answer(STATUSES[Unauthenticated].name)
    context.abort(STATUSES[Unauthenticated], text)

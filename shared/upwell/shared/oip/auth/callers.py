"""Who calls, and what that caller may do: known from its token or its certificate, for as long as the call lasts."""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import grpc

from upwell.shared.errors import ModelNotFound, NotAllowed, Unauthenticated
from upwell.shared.oip.auth.limits import UNLIMITED, Limits

_IPV6_NETWORK_BITS = 64
_KEYS_KEPT = 4096


@dataclass(frozen=True)
class Grant:
    """What a caller may do: the models it may use (globs; None: all), whether it may load and unload them, how much.

    `all_results`: it may read the results of cases that others asked for, too.
    """

    models: tuple[str, ...] | None = None
    control: bool = False
    limits: Limits = UNLIMITED
    all_results: bool = False
    _pattern: re.Pattern[str] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Make one pattern of the globs."""
        pattern = None if self.models is None else re.compile("|".join(map(fnmatch.translate, self.models)) or "(?!)")
        object.__setattr__(self, "_pattern", pattern)

    def permits(self, model: str) -> bool:
        """Whether the model of that name may be used, if there is one."""
        return self._pattern is None or self._pattern.match(model) is not None


@dataclass(frozen=True)
class Caller:
    """One caller of a server that has a `tokens.yaml`. `key` is its own among tokens and certificates.

    `renew` looks it up again, as the file is now: None where it is no longer let in.
    """

    name: str
    key: str
    grant: Grant
    renew: Callable[[], Caller | None] | None = field(default=None, compare=False, repr=False)


ANONYMOUS = Caller("", "", Grant(models=()))
"""The caller of a public method without a token."""

# gRPC runs the interceptors and the handler of one call in one context of their own.
_caller: ContextVar[Caller | None] = ContextVar("caller", default=None)


def current_caller() -> Caller | None:
    """Who calls, in the thread that handles the call; None on a server that knows no tokens."""
    return _caller.get()


def set_caller(caller: Caller) -> None:
    """Say who calls, for the rest of this context."""
    _caller.set(caller)


@contextmanager
def calling(caller: Caller | None) -> Iterator[None]:
    """Say who calls, until the block ends."""
    token = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(token)


def renewed(caller: Caller | None) -> Caller | None:
    """The caller of a long call, looked up again: what it may do may have changed since the call began.

    Raises `Unauthenticated` where it is no longer let in.
    """
    if caller is None or caller.renew is None:
        return caller
    found = caller.renew()
    if found is None:
        raise Unauthenticated("the token or certificate is no longer valid here")
    return found


def may_read_result(caller: Caller | None, model: str, owner: str) -> bool:
    """Whether the caller may read the result of a case that `owner` (its `Caller.key`) asked for."""
    if caller is None:
        return True
    return caller.grant.permits(model) and (caller.grant.all_results or caller.key == owner)


def may_use(model: str) -> bool:
    """Whether the current caller may use a model of that name. It says nothing about whether there is one."""
    caller = _caller.get()
    return caller is None or caller.grant.permits(model)


def sees_all() -> bool:
    """Whether the current caller may use every model, and so may be told their names."""
    caller = _caller.get()
    return caller is None or caller.grant.models is None


def check_may_use(model: str) -> None:
    """Raise `NotAllowed` for a model that the current caller may not use, whether it exists or not."""
    if not may_use(model):
        raise NotAllowed(f"this caller may not use model {model!r}")


def check_may_control(model: str) -> None:
    """Raise `NotAllowed` where the current caller may not load and unload that model."""
    check_may_use(model)
    caller = _caller.get()
    if caller is not None and not caller.grant.control:
        raise NotAllowed("this caller may not load or unload models; `control: true` in tokens.yaml would allow it")


@contextmanager
def naming_no_others(model: str, version: str = "") -> Iterator[None]:
    """Tell a caller who may not use every model only that there is no such one: a `ModelNotFound` lists others."""
    try:
        yield
    except ModelNotFound:
        if sees_all():
            raise
        if not version:
            raise ModelNotFound.unknown(model) from None
        raise ModelNotFound(f"there is no version {version!r} of model {model!r} here") from None


def usable_name(common_name: str) -> str:
    """A certificate's common name as the name of a caller; empty, which is none, where it holds control characters.

    Such a name would forge lines of a log, and escaped it could be another one's.
    """
    return common_name if common_name.isprintable() else ""


def certificate_name(context: grpc.ServicerContext) -> str:
    """The common name of the client's certificate; empty where it showed none."""
    if context.peer_identities() is None:
        return ""
    facts: Mapping[str, Any] = context.auth_context()
    names: Sequence[bytes] = facts.get("x509_common_name", ())
    return usable_name(names[0].decode(errors="replace")) if names else ""


@lru_cache(_KEYS_KEPT)
def client_key(client: str) -> str:
    """Who a client is, from `Call.client`: an address loses its port, anything else stays as it is."""
    address = unquote(client.removeprefix("ipv4:").removeprefix("ipv6:"))
    host = address.rpartition(":")[0].strip("[]")
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return "unix" if client.startswith("unix:") else client
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    return str(ipaddress.ip_network((found, _IPV6_NETWORK_BITS), strict=False))

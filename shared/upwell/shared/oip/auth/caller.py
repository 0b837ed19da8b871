"""The caller of the current call, known by token or certificate, and what it may do here."""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from upwell.shared.errors import ModelNotFound, NotAllowed, Unauthenticated
from upwell.shared.oip.auth.limit_keys import UNLIMITED, Limits
from upwell.shared.oip.dataplane import Call, DataplaneLayer, InferRequest, InferResponse, ModelMetadata
from upwell.shared.value_classes import value_class

if TYPE_CHECKING:  # a client, and an agent by itself, does without it
    import grpc

_IPV6_NETWORK_BITS = 64
_KEYS_KEPT = 4096


@value_class
class Grant:
    """What a caller may do: the models it may use (globs; None: all), whether it may load and unload them, its limits.

    `all_results`: it may also read the results of cases that others asked for.
    """

    models: tuple[str, ...] | None = None
    control: bool = False
    limits: Limits = UNLIMITED
    all_results: bool = False
    _pattern: re.Pattern[str] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compile the globs into one pattern."""
        pattern = None if self.models is None else re.compile("|".join(map(fnmatch.translate, self.models)) or "(?!)")
        object.__setattr__(self, "_pattern", pattern)

    def permits(self, model: str) -> bool:
        """Whether the caller may use a model of that name, if it exists."""
        return self._pattern is None or self._pattern.match(model) is not None


@value_class
class Caller:
    """One caller of a server that has a `tokens.yaml`. `key` is unique among tokens and certificates.

    `renew` looks the caller up in the file as it is now; it returns None if the caller is no longer admitted.
    """

    name: str
    key: str
    grant: Grant
    renew: Callable[[], Caller | None] | None = field(default=None, compare=False, repr=False)


ANONYMOUS = Caller("", "", Grant(models=()))
"""The caller of a public method without a token."""

# gRPC runs the interceptors and the handler of a call in a context of their own.
_caller: ContextVar[Caller | None] = ContextVar("caller", default=None)


def current_caller() -> Caller | None:
    """The caller of the call that this thread handles; None on a server without tokens."""
    return _caller.get()


def set_caller(caller: Caller) -> None:
    """Set the caller for the rest of this context."""
    _caller.set(caller)


@contextmanager
def calling(caller: Caller | None) -> Iterator[None]:
    """Set the caller for the block."""
    token = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(token)


def renewed(caller: Caller | None) -> Caller | None:
    """The caller of a long call, looked up again, since its permissions may have changed.

    Raises `Unauthenticated` if it is no longer admitted.
    """
    if caller is None or caller.renew is None:
        return caller
    found = caller.renew()
    if found is None:
        raise Unauthenticated("the token or certificate is no longer valid here")
    return found


def may_read_result(caller: Caller | None, model: str, owner: str) -> bool:
    """Whether the caller may read the result of a case requested by `owner` (a `Caller.key`)."""
    if caller is None:
        return True
    return caller.grant.permits(model) and (caller.grant.all_results or caller.key == owner)


def may_use(model: str) -> bool:
    """Whether the current caller may use a model of that name, which need not exist."""
    caller = _caller.get()
    return caller is None or caller.grant.permits(model)


def sees_all() -> bool:
    """Whether the current caller may use every model, and so may see their names."""
    caller = _caller.get()
    return caller is None or caller.grant.models is None


def check_may_use(model: str) -> None:
    """Raise `NotAllowed` for a model that the current caller may not use, whether it exists or not."""
    if not may_use(model):
        raise NotAllowed(f"this caller may not use model {model!r}")


def check_may_control(model: str) -> None:
    """Raise `NotAllowed` if the current caller may not load and unload that model."""
    check_may_use(model)
    caller = _caller.get()
    if caller is not None and not caller.grant.control:
        raise NotAllowed("this caller may not load or unload models; `control: true` in tokens.yaml allows it")


@contextmanager
def naming_no_others(model: str, version: str = "") -> Iterator[None]:
    """Keep the names of other models, which a `ModelNotFound` lists, from callers who may not use every model."""
    try:
        yield
    except ModelNotFound:
        if sees_all():
            raise
        if not version:
            raise ModelNotFound.unknown(model) from None
        raise ModelNotFound(f"model {model!r} has no version {version!r}") from None


def usable_name(common_name: str) -> str:
    """A certificate's common name as the name of a caller; "" (no name) if it has control characters.

    Such a name could forge log lines, and escaping it could make it equal to another one.
    """
    return common_name if common_name.isprintable() else ""


def certificate_name(context: grpc.ServicerContext) -> str:
    """The common name of the client's certificate; "" without a certificate."""
    if context.peer_identities() is None:
        return ""
    facts: Mapping[str, Any] = context.auth_context()
    names: Sequence[bytes] = facts.get("x509_common_name", ())
    return usable_name(names[0].decode(errors="replace")) if names else ""


@lru_cache(_KEYS_KEPT)
def client_key(client: str) -> str:
    """The key of a client, from `Call.client`: an address without its port, anything else unchanged."""
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


class Permits(DataplaneLayer):
    """Raises `NotAllowed` for models that the current caller may not use; passes everything else through.

    The reply is the same whether the model exists or not, so it does not reveal what is served.
    """

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        """See `Dataplane.infer`."""
        check_may_use(request.model)
        with naming_no_others(request.model, request.version):
            return self._dataplane.infer(request, call)

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        """See `Dataplane.metadata`."""
        check_may_use(model)
        with naming_no_others(model, version):
            return self._dataplane.metadata(model, version)

    def ready(self, model: str | None = None, version: str = "") -> bool:
        """See `Dataplane.ready`."""
        if model is not None:
            check_may_use(model)
        return self._dataplane.ready(model, version)

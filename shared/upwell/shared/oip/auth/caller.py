"""The caller of the current call, known by token or certificate: its permissions, its models and its limits."""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from upwell.shared.config.yaml import FilePart
from upwell.shared.errors import ModelNotFound, NotAllowed, Unauthenticated
from upwell.shared.oip.dataplane import Call, DataplaneLayer, InferRequest, InferResponse, ModelMetadata
from upwell.shared.routing.estimators.token_bucket import Refill
from upwell.shared.units import SIZE_UNIT_PATTERN, parse_bytes, parse_count, parse_rate, rate_schema
from upwell.shared.value_classes import value_class

if TYPE_CHECKING:  # a client, and an agent by itself, does without it
    import grpc

_PERIOD_S: Mapping[str, float] = {"s": 1.0, "min": 60.0, "h": 3600.0, "day": 86400.0}


def _refill(amount: float, period: str, value: object) -> Refill:
    if period not in _PERIOD_S or amount <= 0:
        raise ValueError(f"expected more than 0 per s, min, h or day, got {value!r}")
    return Refill(amount / _PERIOD_S[period], amount)


def parse_request_rate(value: object) -> Refill:
    """`100/s` -> a refill whose bucket holds the amount of one period. Raises `ValueError`."""
    return _refill(*parse_rate(value, parse_count, "100/s"), value)


def parse_byte_rate(value: object) -> Refill:
    """`10MB/s` -> a refill whose bucket holds the amount of one period. Raises `ValueError`."""
    return _refill(*parse_rate(value, parse_bytes, "10MB/s"), value)


def _as_written(rate: Refill | None, unit: str = "") -> str | None:
    """The text that reads back as the same refill."""
    if rate is None:
        return None
    period = min(_PERIOD_S, key=lambda name: abs(rate.most / _PERIOD_S[name] - rate.per_s))
    return f"{rate.most:.0f}{unit}/{period}"


_RATE_AS_WRITTEN = PlainSerializer(_as_written, when_used="json")
_BYTES_AS_WRITTEN = PlainSerializer(lambda rate: _as_written(rate, "B"), when_used="json")


class Limits(FilePart):
    """The limits of one client; by default none."""

    rate: Annotated[Refill | None, BeforeValidator(parse_request_rate), rate_schema(), _RATE_AS_WRITTEN] = Field(
        None, description="Inference requests, such as 100/s."
    )
    burst: Annotated[int | None, Field(ge=1, le=1_000_000)] = Field(
        None, description="Requests allowed at once. Default: the number in `rate`."
    )
    concurrency: Annotated[int | None, Field(ge=1, le=100_000)] = Field(
        None, description="Concurrent inference requests."
    )
    bytes: Annotated[
        Refill | None, BeforeValidator(parse_byte_rate), rate_schema(SIZE_UNIT_PATTERN), _BYTES_AS_WRITTEN
    ] = Field(None, description="Tensors of requests and answers together, such as 10MB/s.")

    @model_validator(mode="after")
    def _burst_of_a_rate(self) -> Limits:
        if self.burst is not None and self.rate is None:
            raise ValueError("`burst` needs `rate`")
        return self

    def over(self, defaults: Limits) -> Limits:
        """These limits, completed by `defaults`. A rate and its burst go together."""
        paced = self if self.rate is not None else defaults
        return Limits.model_construct(
            rate=paced.rate,
            burst=paced.burst,
            concurrency=defaults.concurrency if self.concurrency is None else self.concurrency,
            bytes=defaults.bytes if self.bytes is None else self.bytes,
        )

    @property
    def requests(self) -> Refill | None:
        """The bucket of requests for `rate` and `burst`; None without a rate."""
        if self.rate is None or self.burst is None:
            return self.rate
        return Refill(self.rate.per_s, float(self.burst))


UNLIMITED = Limits.model_construct()


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

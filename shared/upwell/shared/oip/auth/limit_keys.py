"""Configuration keys of the limits of clients: requests and bytes per time, concurrent requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from upwell.shared.config.yaml import FilePart
from upwell.shared.routing.estimators.token_bucket import Refill
from upwell.shared.units import SIZE_UNIT_PATTERN, parse_bytes, parse_count, parse_rate, rate_schema

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
    burst: Annotated[int | None, Field(strict=True, ge=1, le=1_000_000)] = Field(
        None, description="Requests allowed at once. Default: the number in `rate`."
    )
    concurrency: Annotated[int | None, Field(strict=True, ge=1, le=100_000)] = Field(
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

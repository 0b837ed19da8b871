"""What a fleet service wishes of a device: the whole remote configuration."""

from __future__ import annotations

import hashlib
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

STATISTICS_S = 900.0


Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=100)]


class Wish(BaseModel):
    """The release to run, from when, how often the device reports its counts, and limits on what it offloads.

    `release` is a sequence number (None: the newest in the device's own repository); a device only installs what was
    signed with the release key. `shadow` is a release whose models also answer, and only the service sees those
    answers. `shares` limits the share of rows that may be offloaded, by model; it can only tighten the device's own
    policy. Keys of newer services are ignored.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    release: Annotated[int, Field(ge=0, le=2**53)] | None = None
    not_before_unix_s: Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)] | None = None
    shadow: Annotated[int, Field(ge=1, le=2**53)] | None = None
    statistics_s: Annotated[float, Field(ge=1, le=86400, allow_inf_nan=False)] = STATISTICS_S
    shares: Annotated[dict[ModelName, Share], Field(max_length=64)] = Field(default_factory=dict)

    def encode(self) -> bytes:
        """The wish as sent over the wire; equal wishes give equal bytes."""
        return self.model_dump_json().encode()


def read_wish(body: bytes) -> Wish:
    """Parse a wish. Raises `ValueError` that says in one sentence what is wrong."""
    try:
        return Wish.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise ValueError(f"{where}: {first['msg']}") from None


def digest_of(body: bytes) -> bytes:
    """The SHA-256 by which both sides know a remote configuration."""
    return hashlib.sha256(body).digest()

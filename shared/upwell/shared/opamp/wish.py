"""What a fleet service wishes of a device: the whole of the remote configuration, which cannot say anything else."""

from __future__ import annotations

import hashlib
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

STATISTICS_S = 900.0


Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=100)]


class Wish(BaseModel):
    """Which release is to run, from when, how often the device is to say what it counted, and the most that it may
    send up of what its models are asked.

    `release` is a sequence number (None: the newest that the device's own source has); what a device installs was
    signed by the holder of the release key all the same. `shadow` is a release whose models are to answer beside what
    is served, without anybody hearing of it but the service. `shares` has, by model, the share of the rows that may go
    up; they can only tighten what the device's own policy says. Keys of a newer service are ignored.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    release: Annotated[int, Field(ge=0, le=2**53)] | None = None
    not_before_unix_s: Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)] | None = None
    shadow: Annotated[int, Field(ge=1, le=2**53)] | None = None
    statistics_s: Annotated[float, Field(ge=1, le=86400, allow_inf_nan=False)] = STATISTICS_S
    shares: Annotated[dict[ModelName, Share], Field(max_length=64)] = Field(default_factory=dict)

    def encode(self) -> bytes:
        """As it crosses the wire; equal wishes give equal bytes."""
        return self.model_dump_json().encode()


def read_wish(body: bytes) -> Wish:
    """The wish in these bytes. Raises `ValueError` that says what is wrong with them, in one sentence."""
    try:
        return Wish.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise ValueError(f"{where}: {first['msg']}") from None


def digest_of(body: bytes) -> bytes:
    """SHA-256: the hash by which both sides know a remote configuration."""
    return hashlib.sha256(body).digest()

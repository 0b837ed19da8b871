"""What agent and fleet service share beyond the Open Agent Management Protocol (OpAMP): names, wishes, demands."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

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


def new_instance_uid(now_unix_s: float) -> uuid.UUID:
    """A UUID of version 7 (RFC 9562): 48 bits of milliseconds, then random ones."""
    milliseconds = int(now_unix_s * 1e3) & (2**48 - 1)
    return uuid.UUID(int=milliseconds << 80 | 0x7 << 76 | secrets.randbits(12) << 64 | 0x2 << 62 | secrets.randbits(62))


def digest_of(body: bytes) -> bytes:
    """The SHA-256 by which both sides know a remote configuration."""
    return hashlib.sha256(body).digest()


_NotNegative = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]


class ModelDemand(BaseModel):
    """Figures since the previous report: requests per second, the mean size in bytes of a message to the cloud (0 if
    there was none), and `wanted`, the share of requests that the device's own policy would offload. `share` is the
    limit now in force, None if no budget is shared out.

    `shares` and `risks` are operating points of the calibration in use: if the share `shares[i]` of all requests is
    offloaded, the share `risks[i]` is kept and wrong though the cloud is right. Empty if no fitting calibration has
    them.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    requests_per_s: _NotNegative = 0.0
    request_bytes: _NotNegative = 0.0
    wanted: Share = 1.0
    share: Share | None = None
    shares: Annotated[tuple[Share, ...], Field(max_length=32)] = ()
    risks: Annotated[tuple[Share, ...], Field(max_length=32)] = ()

    @model_validator(mode="after")
    def _pairs(self) -> ModelDemand:
        if len(self.shares) != len(self.risks):
            raise ValueError("expected as many risks as shares")
        return self


def read_demand(value: Any) -> ModelDemand | None:
    """Parse a report; None if it cannot be read, for instance from a newer version."""
    try:
        return ModelDemand.model_validate(value)
    except ValidationError:
        return None


PATH = "/v1/opamp"
CONTENT_TYPE = "application/x-protobuf"

CASES_PATH = "/v1/cases"
"""The path below which a device delivers cases: `PUT <id>` with the case as body, or `POST <id>/url?size_bytes=N`,
answered with JSON that has the `url` in object storage."""

CASE_ID, CASE_SUFFIX = "[0-9a-f]{32}", ".case"

STATISTICS = "io.upwell.statistics/1"
"""Custom capability: the agent sends a message of type `counted`, JSON with `release`, `since_unix_s`, `counts` and
`demand`, the figures of each model for sharing budgets (`ModelDemand`)."""

DRIFT = "io.upwell.drift/1"
"""Custom capability: the agent sends `found` (JSON with `models`, the drift report of each watched model)."""

EXPLAIN = "io.upwell.explain/1"
"""Custom capability: the service sends `ask` (JSON with `id` and `request`), and the agent answers with `told` (`id`
and either `sections`, headings with lines, or `error`)."""

SHADOW = "io.upwell.shadow/1"
"""Custom capability: the agent sends `lines` (JSON with `release`, `lines` of a request log, and a `problem`)."""

RELEASE_PACKAGE = "release"
"""The package whose version is the sequence number of the running release."""

WISH_FILE = "fleet.json"
"""The one file of the remote configuration; see `Wish`."""

DIGEST_TYPE = "text/x-digest"
"""Content type of a file in the effective configuration that is reported only as a digest."""

LABEL = "upwell.label."
"""Prefix of the attributes that hold an agent's labels."""

AGENT_NAME = "upwell.agent.name"

INSTANCE_UID = "upwell.instance_uid"
"""The attribute of metrics that identifies the device to the fleet service."""


def case_upload_s(size_bytes: int) -> float:
    """Time limit for uploading a case (seconds): enough for a link of 160 kbit/s, plus half a minute."""
    return 30.0 + size_bytes / 20_000

"""`fleet` in agent.yaml."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from upwell.shared.config.addresses import Endpoint, parse_endpoint, without_secrets
from upwell.shared.config.yaml import FilePart, RelativePath
from upwell.shared.units import Seconds


def _is_https(text: str) -> str:
    if parse_endpoint(text).scheme != "https":
        raise ValueError(f"expected https://HOST:PORT, got {without_secrets(text)!r}")
    return text


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("expected printable characters")
    return text


Label = Annotated[str, StringConstraints(min_length=1, max_length=80), AfterValidator(_printable)]


class FleetSection(FilePart):
    """A fleet service to report to; needs `agent.state_dir` for the device's key and instance UID."""

    endpoint: Annotated[Endpoint, AfterValidator(_is_https)] = Field(description="The service: https://HOST:PORT.")
    ca: RelativePath | None = Field(
        None, description="Issuers of the service's certificate, such as fleet-ca.pem; default: the system's."
    )
    enrol_token_file: RelativePath | None = Field(None, description="A file with the one-time token to enrol with.")
    labels: dict[Label, Label] = Field({}, max_length=32, description="Labels of this device, for groups.")
    keep_share: Seconds = Field(
        7 * 86400.0,
        gt=0,
        description="How long a share of a fleet's budget holds when the service is silent.",
    )
    every: Seconds = Field(60.0, ge=1, le=3600, description="Poll interval, until the service sets one.")

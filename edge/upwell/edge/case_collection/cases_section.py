"""`agent.cases` in `agent.yaml`: where collected cases are brought."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from upwell.shared.config.addresses import Endpoint, parse_endpoint
from upwell.shared.config.yaml import FilePart, RelativePath
from upwell.shared.units import Seconds


def _is_https(text: str) -> str:
    if parse_endpoint(text).scheme != "https":
        raise ValueError("expected https://HOST/BUCKET, or https://BUCKET.HOST")
    return text


class CasesSection(FilePart):
    """Where the cases of `collect` are brought: one of `to`, `fleet` and `storage`; needs `state_dir`."""

    to: RelativePath | None = Field(None, description="A folder, a network share or a USB stick.")
    fleet: bool = Field(False, description="The fleet service stores them.")
    storage: Annotated[Endpoint, AfterValidator(_is_https)] | None = Field(
        None,
        description="S3-compatible storage, https://HOST/BUCKET; the fleet service signs the addresses.",
    )
    storage_ca: RelativePath | None = Field(None, description="Issuers of its certificate; default: the system's.")
    key_file: RelativePath | None = Field(
        None,
        description="A file with a key, 32 bytes or 64 hexadecimal digits, that encrypts each case (AES-256-GCM).",
    )
    every: Seconds = Field(60.0, ge=1, le=86400, description="How often to look for new ones.")

    @model_validator(mode="after")
    def _one_place(self) -> CasesSection:
        if sum((self.to is not None, self.fleet, self.storage is not None)) != 1:
            raise ValueError("expected one of `to`, `fleet` and `storage`")
        if self.storage_ca is not None and self.storage is None:
            raise ValueError("`storage_ca` needs `storage`")
        return self

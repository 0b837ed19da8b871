"""`fleet.yaml`: the configuration of the fleet service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from upwell.shared.config.addresses import Endpoint, TcpAddress, check_all_differ, parse_endpoint
from upwell.shared.config.yaml import FilePart, RelativePath
from upwell.shared.telemetry.telemetry_keys import LogFormat
from upwell.shared.units import Bytes, Seconds

DEFAULT_LISTEN = "127.0.0.1:4320"
ServerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.:_-]{1,253}$")]


class FleetTls(FilePart):
    """The service's certificate; without it the fleet's authority signs one."""

    cert: RelativePath = Field(description="Certificate chain (PEM).")
    key: RelativePath = Field(description="Private key of the certificate (PEM).")


class AuthoritySection(FilePart):
    """The authority that signs the certificates of devices; replicas share both files."""

    cert: RelativePath = Field(
        Path("fleet-ca.pem"),
        validate_default=True,
        description="The authority's certificate; created if both files are missing.",
    )
    key: RelativePath = Field(
        Path("fleet-ca.key"), validate_default=True, description="Private key of the certificate (PEM)."
    )


class DatabaseSection(FilePart):
    """Where the state is kept: a file of SQLite, or PostgreSQL for several replicas."""

    file: RelativePath = Field(Path("fleet.db"), validate_default=True, description="The SQLite file.")
    postgres: Annotated[str, StringConstraints(pattern=r"^postgresql://")] | None = Field(
        None, description="`postgresql://USER@HOST/NAME`, instead of a file; needs the extra `fleet-postgres`."
    )
    password_file: RelativePath | None = Field(None, description="A file with the password of that user.")

    @model_validator(mode="after")
    def _one_of_them(self) -> DatabaseSection:
        if self.postgres is not None and "file" in self.model_fields_set:
            raise ValueError("`file` and `postgres` exclude each other; write one of them")
        if self.postgres is None and self.password_file is not None:
            raise ValueError("`password_file` needs `postgres`")
        return self


def _is_bucket(text: str) -> str:
    address = parse_endpoint(text)
    if address.scheme != "https":
        raise ValueError("expected https://HOST/BUCKET, or https://BUCKET.HOST")
    return f"https://{address.authority}{address.prefix}"


class BucketSection(FilePart):
    """S3-compatible storage for devices with `cases: {storage: …}`; the service only signs addresses for it."""

    url: Annotated[Endpoint, AfterValidator(_is_bucket)] = Field(
        description="https://HOST/BUCKET or https://BUCKET.HOST; the agents' `storage`."
    )
    region: Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,64}$")] = Field(
        "us-east-1", description="The bucket's region."
    )
    credentials_file: RelativePath | None = Field(
        None,
        description="Access key and secret in the format of ~/.aws/credentials; default: the environment's `AWS_…`.",
    )
    profile: str = Field("default", description="The section of the credentials file.")
    expires: Seconds = Field(600.0, ge=1, le=86400, description="How long an address is valid.")


class CaseIntakeSection(FilePart):
    """Cases that devices bring home: to a folder of the service, a bucket, or either."""

    folder: RelativePath | None = Field(
        None, description="For devices with `cases: {fleet: true}`, each in a folder of its own."
    )
    bucket: BucketSection | None = None
    max_case: Bytes = Field(16 << 20, ge=4096, le=256 << 20, description="Maximum size of a case.")
    limit: Bytes = Field(
        10 << 30, ge=4096, description="Maximum size of `folder`; beyond it cases stay on the devices."
    )

    @model_validator(mode="after")
    def _has_a_place(self) -> CaseIntakeSection:
        if self.folder is None and self.bucket is None:
            raise ValueError("expected `folder`, `bucket`, or both")
        return self


class FleetServiceSection(FilePart):
    """The fleet service."""

    listen: tuple[TcpAddress, ...] = Field(
        (DEFAULT_LISTEN,), min_length=1, description="HOST:PORT for devices and users, always with TLS."
    )
    names: tuple[ServerName, ...] = Field(
        ("localhost", "127.0.0.1"),
        min_length=1,
        description="Names and addresses in the certificate; unused with `tls`.",
    )
    tls: FleetTls | None = None
    authority: AuthoritySection = AuthoritySection()
    database: DatabaseSection = DatabaseSection()
    poll: Seconds = Field(60.0, ge=1, le=3600, description="How often a device polls.")
    certificate_age: Seconds = Field(
        90 * 86400.0, ge=3600, description="Lifetime of a device's certificate; renewed after two thirds."
    )
    history: Seconds = Field(86400.0, ge=3600, description="How long statistics are kept.")
    max_message: Bytes = Field(
        256 << 10, ge=4096, le=16 << 20, description="Maximum size of a device's message, unpacked."
    )
    cases: CaseIntakeSection | None = None
    log: LogFormat = Field("text", description="Log format: text or JSON.")

    @model_validator(mode="before")
    @classmethod
    def _named_by_this_file(cls, data: Any) -> Any:
        """Default paths are relative to the file, too."""
        return {"authority": {}, "database": {}, **data} if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _ports_of_their_own(self) -> FleetServiceSection:
        check_all_differ({"listen": self.listen})
        return self


class FleetConfig(FilePart):
    """A whole `fleet.yaml`."""

    version: Literal[1] = Field(1, description="Version of this file format.")
    fleet: FleetServiceSection = FleetServiceSection()

    @model_validator(mode="before")
    @classmethod
    def _named_by_this_file(cls, data: Any) -> Any:
        """The same if the file says nothing of the service."""
        return {"fleet": {}, **data} if isinstance(data, dict) else data

"""`release` in `agent.yaml`: where releases come from, whom the device trusts, and what no release may loosen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo

from upwell.edge.bundle.address import names_folder
from upwell.edge.release.places import check_place
from upwell.shared.config.yaml import FilePart, RelativePath, resolve
from upwell.shared.errors import ConfigError
from upwell.shared.units import Seconds


def _source(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, str):
        return value
    try:
        check_place(value)
    except ConfigError as error:
        raise ValueError(error.problems[0].message) from None
    if names_folder(value):
        return str(resolve(value, (info.context or {}).get("base_dir", Path())))
    return value


class FloorSection(FilePart):
    """What no release may loosen."""

    policy: RelativePath | None = Field(
        None,
        description="A policy whose `egress: deny` every release must keep; by default `policy`.",
    )
    endpoints: tuple[str, ...] = Field(
        (),
        description="HOST or HOST:PORT that a release may name: registries, brokers, cameras, receivers.",
    )
    folders: tuple[RelativePath, ...] = Field(
        (), description="Folders that the pipelines of a release may read and write."
    )


class ReleaseSection(FilePart):
    """Releases alone decide which bundles, policy and pipelines this device runs; needs `state_dir`."""

    source: Annotated[str, BeforeValidator(_source)] = Field(
        min_length=1, description="The repository of releases: a folder (a stick, a share) or `https://…`."
    )
    root: RelativePath = Field(description="The root metadata that is trusted to begin with: `N.root.json`.")
    every: Seconds = Field(3600.0, ge=1.0, description="How often it is looked at.")
    ca: RelativePath | None = Field(None, description="Issuers of the server's certificate; default: the system's.")
    clock: Literal["auto", "trusted"] = Field(
        "auto",
        description="What has expired is refused: once the clock is synchronised, or always.",
    )
    floor: FloorSection = Field(FloorSection(), description="What no release may loosen.")

    @property
    def digest(self) -> str:
        """Whatever is signed."""
        return ""

    @property
    def place(self) -> str:
        """The source as it may be shown: what follows `?` in an address may be a credential."""
        return self.source.partition("?")[0]

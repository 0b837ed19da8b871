"""`release` in `agent.yaml`: where releases come from, which keys the device trusts, and its floor."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from upwell.edge.bundle.source_address import check_repository, source_key
from upwell.shared.config.yaml import FilePart, RelativePath
from upwell.shared.units import Seconds


class FloorSection(FilePart):
    """Limits that no release may loosen."""

    policy: RelativePath | None = Field(
        None, description="A policy whose `egress: deny` every release must keep. Default: `policy`."
    )
    endpoints: tuple[str, ...] = Field(
        (),
        description="HOST or HOST:PORT that a release may name: registries, brokers, cameras, receivers.",
    )
    folders: tuple[RelativePath, ...] = Field((), description="Folders that pipelines of a release may read and write.")


class ReleaseSection(FilePart):
    """Releases alone decide which bundles, policy and pipelines run here, in place of `updates`; needs `state_dir`."""

    source: Annotated[str, source_key(check_repository)] = Field(
        min_length=1, description="The release repository: a folder (a USB stick, a network share) or `https://…`."
    )
    root: RelativePath = Field(description="The root metadata trusted at first: `N.root.json`.")
    every: Seconds = Field(3600.0, ge=1.0, description="How often to look.")
    ca: RelativePath | None = Field(None, description="Issuers of the server's certificate; default: the system's.")
    clock: Literal["auto", "trusted"] = Field(
        "auto",
        description="When expired metadata is refused: once the clock is synchronised, or always.",
    )
    floor: FloorSection = FloorSection.model_construct()

    @property
    def digest(self) -> str:
        """Empty: any signed file is accepted."""
        return ""

    @property
    def place(self) -> str:
        """The source without what follows `?`, which may be a credential."""
        return self.source.partition("?")[0]

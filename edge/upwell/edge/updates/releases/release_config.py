"""`release` in `agent.yaml`: where releases come from, which keys the device trusts, and its floor.

The floor is what no release may loosen, whoever signed it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, ValidationInfo

from upwell.edge.bundle.bundle import BundleRefused, Refusal
from upwell.edge.bundle.source_address import Reference, names_folder
from upwell.edge.updates.releases.repository_transport import check_repository
from upwell.edge.updates.releases.signed_document import ReleaseDocument
from upwell.shared.config.yaml import FilePart, RelativePath, resolve
from upwell.shared.errors import ConfigError
from upwell.shared.routing.policy.dropped_denies import dropped_denies
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.units import Seconds


def _source(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, str):
        return value
    try:
        check_repository(value)
    except ConfigError as error:
        raise ValueError(error.problems[0].message) from None
    if names_folder(value):
        return str(resolve(value, (info.context or {}).get("base_dir", Path())))
    return value


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

    source: Annotated[str, BeforeValidator(_source)] = Field(
        min_length=1, description="The release repository: a folder (a USB stick, a network share) or `https://…`."
    )
    root: RelativePath = Field(description="The root metadata trusted at first: `N.root.json`.")
    every: Seconds = Field(3600.0, ge=1.0, description="How often to look.")
    ca: RelativePath | None = Field(None, description="Issuers of the server's certificate; default: the system's.")
    clock: Literal["auto", "trusted"] = Field(
        "auto",
        description="When expired metadata is refused: once the clock is synchronised, or always.",
    )
    floor: FloorSection = FloorSection()

    @property
    def digest(self) -> str:
        """Empty: any signed file is accepted."""
        return ""

    @property
    def place(self) -> str:
        """The source without what follows `?`, which may be a credential."""
        return self.source.partition("?")[0]


@dataclass(frozen=True)
class DeviceFloor:
    """The device's own limits: `keeps` is the policy whose `egress: deny` must hold, and a release may name only these
    `endpoints` and `folders`. `home` is the host that releases come from."""

    keeps: Policy
    endpoints: Collection[str] = ()
    folders: Sequence[Path] = ()
    home: str = ""

    def check_policy(self, sequence: int, policy: Policy) -> None:
        """Raise `BundleRefused` (`LOOSENED`) for a policy that lets data leave which this device keeps."""
        dropped = dropped_denies(self.keeps, policy)
        if dropped:
            names = ", ".join(map(repr, dropped))
            problem = f"release {sequence} drops {names}, which keep data on this device by egress: deny"
            raise BundleRefused(Refusal.LOOSENED, None, problem)

    def check_sources(self, document: ReleaseDocument) -> None:
        """Raise `BundleRefused` (`LOOSENED`) for files in a registry that this device may not contact."""
        for payload in document.payloads:
            if payload.source:
                registry = Reference.parse(payload.source).registry
                if registry != self.home:
                    self.check_endpoint(document.sequence, registry)

    def check_endpoint(self, sequence: int, address: str) -> None:
        """Raise `BundleRefused` (`LOOSENED`) for a HOST:PORT that is not among `endpoints`."""
        host = urlsplit(f"//{address}").hostname or address
        if address not in self.endpoints and host not in self.endpoints:
            problem = f"release {sequence} names {address}, which is not among `floor.endpoints` of this device"
            raise BundleRefused(Refusal.LOOSENED, None, problem)

    def check_folder(self, sequence: int, path: Path) -> None:
        """Raise `BundleRefused` (`LOOSENED`) for a path outside all `folders`, after following links."""
        real = path.resolve()
        if not any(real.is_relative_to(one.resolve()) for one in self.folders):
            problem = f"release {sequence} names {path}, which is outside `floor.folders` of this device"
            raise BundleRefused(Refusal.LOOSENED, None, problem)

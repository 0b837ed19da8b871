"""The floor of a device: what no release may loosen, whoever signed it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from upwell.edge.bundle.bundle import BundleRefused, Refusal
from upwell.edge.bundle.source_address import Reference
from upwell.edge.updates.releases.release_document import ReleaseDocument
from upwell.shared.routing.policy.dropped_denies import dropped_denies
from upwell.shared.routing.policy.policy import Policy


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

"""The fleet in a few figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from upwell.fleet.registry.devices import Stored
from upwell.fleet.rollout.gate import NO_COUNTS, Counts
from upwell.fleet.rollout.store import counts_of


@dataclass(frozen=True)
class Glance:
    """How many devices run which release and version, and what they served since they
    started; `up` of the requests went to the cloud."""

    devices: int
    releases: Mapping[str, int]
    versions: Mapping[str, int]
    counts: Counts
    up: int


def glance(devices: Iterable[Stored]) -> Glance:
    """The figures of these devices, without those that were revoked."""
    here = [one for one in devices if one["revoked_unix_s"] is None]
    releases = Counter("none" if one["release"] is None else str(one["release"]) for one in here)
    versions = Counter(one["attributes"].get("service.version", "") or "unknown" for one in here)
    counts = sum((counts_of(one["statistics"]["counts"]) for one in here if one["statistics"]), NO_COUNTS)
    ups = [one["statistics"]["counts"].get("up", 0) for one in here if one["statistics"]]
    up = min(counts.requests, sum(one for one in ups if isinstance(one, int)))
    return Glance(len(here), dict(sorted(releases.items())), dict(sorted(versions.items())), counts, up)

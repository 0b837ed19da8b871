"""Finding what measures on a tier: the entry points of the group `upwell.partition_tiers`, imported when asked for."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import cast

from upwell.shared.errors import ConfigError
from upwell.shared.partition.measuring import PartitionTier, TierOptions

_GROUP = "upwell.partition_tiers"


def open_tier(name: str, model_format: str, options: TierOptions) -> tuple[PartitionTier, str]:
    """The tier that measures models of this format for the side `name` (`edge` or `cloud`), and what it is called.

    A format that this side does not run is measured on the other one: a tail as TFLite runs in an agent that serves as
    gateway. Raises `ConfigError` where none is there, and for options that it refuses.
    """
    entries = sorted(entry_points(group=_GROUP), key=lambda entry: (entry.name != name, entry.name))
    for entry in entries:
        tier = entry.load()
        if model_format in tier.formats:
            return cast(PartitionTier, tier(options)), entry.name
    known = ", ".join(entry.name for entry in entries) or "none"
    raise ConfigError.at(None, f"no tier that is installed ({known}) runs {model_format} models", "--tier")

"""How a cloud model resizes pictures, from the `parameters` of its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import ValidationError

from upwell.shared.signature.model_yaml import Resize
from upwell.shared.signature.uplink_pictures import NO_RESIZES, Resizes

_DIGEST, _RESIZE = "upwell.digest", "upwell.resize."


@dataclass(frozen=True)
class Seen:
    """The sizes to which the model of that digest resizes pictures, by input; digest "" if the server does not say."""

    digest: str = ""
    resizes: Resizes = field(default_factory=lambda: NO_RESIZES)


def write_seen(digest: str, resizes: Resizes) -> dict[str, str]:
    """The parameters for these sizes; empty for a model that resizes nothing."""
    if not resizes:
        return {}
    written = {_RESIZE + name: one.model_dump_json(include={"to", "fit", "filter"}) for name, one in resizes.items()}
    return {_DIGEST: digest, **written}


def read_seen(parameters: Mapping[str, str]) -> Seen:
    """Parse parameters. A size that cannot be read, for instance from a later version, is ignored."""
    resizes = {}
    for name, text in parameters.items():
        if name.startswith(_RESIZE):
            try:
                resizes[name.removeprefix(_RESIZE)] = Resize.model_validate_json(text)
            except ValidationError:
                continue
    return Seen(parameters.get(_DIGEST, ""), resizes)

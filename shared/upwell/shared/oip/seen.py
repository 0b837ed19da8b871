"""What a model in the cloud makes of pictures before it looks at them, as the `parameters` of its configuration say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import ValidationError

from upwell.shared.signature.keys import Resize
from upwell.shared.signature.uplink_pictures import NO_RESIZES, Resizes

_DIGEST, _RESIZE = "upwell.digest", "upwell.resize."


@dataclass(frozen=True)
class Seen:
    """How the model of that digest resizes pictures, by input; of no digest where the server says nothing of it."""

    digest: str = ""
    resizes: Resizes = field(default_factory=lambda: NO_RESIZES)


def write_seen(digest: str, resizes: Resizes) -> dict[str, str]:
    """As parameters; none for a model that resizes nothing."""
    if not resizes:
        return {}
    written = {_RESIZE + name: one.model_dump_json(include={"to", "fit", "filter"}) for name, one in resizes.items()}
    return {_DIGEST: digest, **written}


def read_seen(parameters: Mapping[str, str]) -> Seen:
    """From parameters. A size that cannot be read, of a later version, say, is as good as none."""
    resizes = {}
    for name, text in parameters.items():
        if name.startswith(_RESIZE):
            try:
                resizes[name.removeprefix(_RESIZE)] = Resize.model_validate_json(text)
            except ValidationError:
                continue
    return Seen(parameters.get(_DIGEST, ""), resizes)

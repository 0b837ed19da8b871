"""What the rules of a policy may look at."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from upwell.shared.values import quick


@quick
@dataclass(frozen=True, slots=True)
class RequestFacts:
    """The request. `wall_time_s` is Unix time; `size_bytes` the largest row's size on the wire."""

    model: str
    tags: Mapping[str, str]
    size_bytes: int
    wall_time_s: float


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What is known besides the request; NaN where nothing recent is known.

    The round trip and the speeds of the link, the time that the device and the cloud would take for this request, and
    whether the cloud is left alone for a moment.
    """

    rtt_s: float = math.nan
    up_bytes_per_s: float = math.nan
    down_bytes_per_s: float = math.nan
    edge_s: float = math.nan
    cloud_s: float = math.nan
    breaker_open: bool = False

"""The facts that rules of a policy may use."""

from __future__ import annotations

import math
from collections.abc import Mapping

from upwell.shared.value_classes import value_class


@value_class
class RequestFacts:
    """The request. `wall_time_s` is Unix time; `size_bytes` the largest row's size on the wire."""

    model: str
    tags: Mapping[str, str]
    size_bytes: int
    wall_time_s: float


@value_class
class RowFacts:
    """Facts besides the request; NaN if nothing recent is known.

    The round trip and the rates of the link, the times of device and cloud for this request, and whether the breaker is
    open.
    """

    rtt_s: float = math.nan
    up_bytes_per_s: float = math.nan
    down_bytes_per_s: float = math.nan
    edge_s: float = math.nan
    cloud_s: float = math.nan
    breaker_open: bool = False

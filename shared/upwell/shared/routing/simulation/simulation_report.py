"""The outcome of each simulated request, and their summary."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from upwell.shared.routing.policy.settings import LowerQuality, Settings
from upwell.shared.routing.reasons import Reason, Route
from upwell.shared.routing.simulation.logged_requests import LoggedRequest


@dataclass(slots=True)
class SimulatedOutcome:
    """The outcome of one request.

    `deadline_s` is when its answer was due, `answered_s` when it came, NaN without one, and `route` who gave it.
    `left_bytes` are the bytes that left the device for it. `estimate_bits_per_s` is the router's estimate of the link's
    rate at the decision, NaN if unknown or not asked. `quality` is that of the pictures sent last, None for
    model.yaml's.
    """

    request: LoggedRequest
    settings: Settings
    deadline_s: float
    reason: Reason
    route: Route | None = None
    answered_s: float = math.nan
    left_bytes: int = 0
    edge_runs: int = 0
    estimate_bits_per_s: float = math.nan
    quality: LowerQuality | None = None

    @property
    def latency_s(self) -> float:
        """From arrival to answer."""
        return self.answered_s - self.request.t_s

    @property
    def in_time(self) -> bool:
        """Whether the answer came, and by its deadline."""
        return self.answered_s <= self.deadline_s

    @property
    def is_right(self) -> bool:
        """Whether the answer came in time and is right."""
        line = self.request.line
        is_up = self.route in (Route.CLOUD, Route.SPLIT)
        return self.in_time and bool(self.request.cloud_is_right(self.quality) if is_up else line.edge_correct)


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """The summary of a strategy over a log.

    - `answered`: requests with an answer, however late. `deadline_hit_rate`: answered in time ÷ requests.
    - `accuracy`: right and in time ÷ requests, both over the lines that know `edge_correct` and `cloud_correct`, so
    that all strategies are measured on the same requests; None without such lines.
    - `p50_s`, `p95_s`, `p99_s`: quantiles by rank of the time to the answer, late ones included; None without answers.
    - `cloud_share`: requests of which anything left the device ÷ requests; `bytes_up` the bytes that left.
    - `cost` and `energy_j` by the policy's prices and energy. `reasons`: the reason of each answer or refusal.
    """

    requests: int
    answered: int
    deadline_hit_rate: float
    accuracy: float | None
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    cloud_share: float
    bytes_up: int
    cost: float
    energy_j: float
    reasons: Mapping[str, int]

    @classmethod
    def of(cls, served: Sequence[SimulatedOutcome]) -> SimulationReport:
        """The summary of at least one request."""
        count = len(served)
        latencies_s = sorted(one.latency_s for one in served if one.route is not None)
        judged = [one for one in served if None not in (one.request.line.edge_correct, one.request.line.cloud_correct)]
        up = [one for one in served if one.left_bytes]
        reasons = Counter(str(one.reason) for one in served)
        return cls(
            requests=count,
            answered=len(latencies_s),
            deadline_hit_rate=sum(one.in_time for one in served) / count,
            accuracy=sum(one.is_right for one in judged) / len(judged) if judged else None,
            p50_s=_quantile(latencies_s, 0.5),
            p95_s=_quantile(latencies_s, 0.95),
            p99_s=_quantile(latencies_s, 0.99),
            cloud_share=len(up) / count,
            bytes_up=sum(one.left_bytes for one in up),
            cost=math.fsum(one.settings.prices.of(one.left_bytes) for one in up),
            energy_j=math.fsum(map(_energy_j, served)),
            reasons=dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
        )


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else None


def _energy_j(served: SimulatedOutcome) -> float:
    energy = served.settings.energy
    return served.edge_runs * energy.inference_j + served.left_bytes * energy.uplink_byte_j

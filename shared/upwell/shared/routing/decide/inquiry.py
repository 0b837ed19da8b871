"""The request and router state that a person describes to `upwell policy explain`."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from upwell.shared.routing.decide.router import Router
from upwell.shared.routing.decide.state import CloudAnswered, CloudCallFailed, EdgeRan, RouterState, Signals
from upwell.shared.routing.estimators.breaker import Breaker
from upwell.shared.routing.hardness import Measure
from upwell.shared.routing.policy.request_facts import RequestFacts
from upwell.shared.routing.policy.settings import ModelPair
from upwell.shared.routing.reasons import Reason
from upwell.shared.routing.tags import Tags
from upwell.shared.units import parse_bits_per_second

NOW_S = 1_000_000.0
"""The time of the explained decision, on its own clock."""
_RUNS = 32

_Seconds = Annotated[float, Field(strict=True, ge=0, le=1e6)]
_Bytes = Annotated[int, Field(strict=True, ge=0, le=2**50)]


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _speed(value: object) -> object:
    """Accept `20Mbps` as well as a plain number of bits per second."""
    return parse_bits_per_second(value) if isinstance(value, str) else value


class LinkDescription(_Keys):
    """The link to the cloud."""

    rtt_s: _Seconds = 0.0
    uplink_bps: Annotated[float, BeforeValidator(_speed), Field(strict=True, gt=0)] | None = None


def _time(text: str) -> str:
    try:
        datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise ValueError(f"expected a time such as 2026-05-01T22:30 or 2026-05-01T22:30+02:00, got {text!r}") from None
    return text


class Inquiry(_Keys):
    """The keys of request.json; what is left out is unknown, or as usual."""

    model: str = Field(min_length=1)
    size_bytes: _Bytes | None = None
    row_sizes_bytes: Annotated[list[_Bytes], Field(min_length=1, max_length=1000)] | None = None
    tags: Tags = {}
    time: Annotated[str, AfterValidator(_time)] | None = None
    deadline_s: Annotated[float, Field(strict=True, gt=0, le=86400)] | None = None
    hardness: float | dict[Measure, float] | None = None
    edge_s: _Seconds | None = None
    cloud_s: _Seconds | None = None
    link: LinkDescription | None = None
    breaker_open: bool = False
    has_edge: bool = True
    has_cloud: bool = True
    edge_digest: str = ""
    edge_runtime: str = ""
    cloud_digest: str = ""

    @model_validator(mode="after")
    def _one_size(self) -> Inquiry:
        if self.size_bytes is not None and self.row_sizes_bytes is not None:
            raise ValueError("expected size_bytes (of one row) or row_sizes_bytes, not both")
        return self

    @property
    def model_pair(self) -> ModelPair:
        """The model pair, for the choice of a calibration."""
        return ModelPair(self.edge_digest, self.edge_runtime, self.cloud_digest)

    @property
    def sizes_bytes(self) -> tuple[int, ...]:
        """The size of each row; one empty row if none is given."""
        return tuple(self.row_sizes_bytes or (self.size_bytes or 0,))

    def signals(self, wall_time_s: float, **after_edge: Any) -> Signals:
        """The request in the router's form; `after_edge` are the rows that ran and their hardness."""
        return Signals(
            RequestFacts(self.model, self.tags, self._request_bytes(), wall_time_s),
            self.sizes_bytes,
            NOW_S,
            math.inf if self.deadline_s is None else NOW_S + self.deadline_s,
            has_edge=self.has_edge,
            has_cloud=self.has_cloud,
            **after_edge,
        )

    def _request_bytes(self) -> int:
        return max(self.sizes_bytes) if self.has_edge else sum(self.sizes_bytes)

    def state(self, router: Router) -> RouterState:
        """The state of a router that has seen these times again and again."""
        state, rows = RouterState(), len(self.sizes_bytes)
        if self.edge_s is not None:
            for _ in range(_RUNS):
                state = router.observe(state, EdgeRan(self.model, rows, self.edge_s), NOW_S)
        if self.cloud_s is not None or self.link is not None:
            for index in range(_RUNS):
                state = router.observe(state, self._answer(rows, index), NOW_S)
        if self.breaker_open:
            for _ in range(Breaker.FAILURES):
                state = router.observe(state, CloudCallFailed(self.model, Reason.CLOUD_UNAVAILABLE), NOW_S)
        return state

    def _answer(self, rows: int, index: int) -> CloudAnswered:
        """One of several past answers, with different sizes so that rate and round trip can be told apart."""
        link, server_s = self.link or LinkDescription(), self.cloud_s or 0.0
        sent_bytes = sum(self.sizes_bytes) + 10_000 * (index % 4)
        network_s = link.rtt_s + (0.0 if link.uplink_bps is None else sent_bytes * 8 / link.uplink_bps)
        return CloudAnswered(self.model, rows, sent_bytes, network_s + server_s, server_s)

    def hardness_of(self, measure: str) -> float | None:
        """The hardness of each row, if given for this measure."""
        return self.hardness.get(measure) if isinstance(self.hardness, dict) else self.hardness  # type: ignore[call-overload]  # any text may be asked for

"""The agent: answers requests on the device or lifts them to the cloud, within the deadline and with a reason."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType

from upwell.edge.answer import Answer
from upwell.edge.ascent import Desk
from upwell.edge.handling import Handling
from upwell.edge.inputs import as_arrays
from upwell.edge.metrics import AgentMetrics
from upwell.edge.models.served import ServedModel
from upwell.edge.router_cell import RouterCell
from upwell.edge.state_dir import StateDir
from upwell.edge.uplink.uplink import Uplink
from upwell.shared.errors import DeadlineExceeded, ModelNotFound, Unavailable, UpwellError
from upwell.shared.routing.policy import Policy
from upwell.shared.tensors import Array

_log = logging.getLogger(__name__)
_NO_TAGS: Mapping[str, str] = MappingProxyType({})


class Agent:
    """Serves models in this process. Safe to use from many threads; close it, or use it as a context manager."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        uplink: Uplink | None,
        policy: Policy,
        *,
        name: str = "agent",
        state_dir: StateDir | None = None,
    ) -> None:
        self.name = name
        self._state_dir = state_dir
        self.models: Mapping[str, ServedModel] = MappingProxyType({model.name: model for model in models})
        self.uplink = uplink
        self.router = RouterCell(policy)
        self.metrics = AgentMetrics(lambda: self.router.state)
        self._desk = Desk(self.router, uplink, self.metrics)
        self._closed = False

    @classmethod
    def from_config(cls, path: str | Path) -> Agent:
        """The agent that `agent.yaml` describes, its models loaded and warmed up. Raises `ConfigError`."""
        from upwell.edge.assembly import build_agent

        return build_agent(Path(path))

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Array | bytes],
        *,
        deadline_s: float = math.inf,
        tags: Mapping[str, str] = _NO_TAGS,
        id: str = "",
    ) -> Answer:
        """Answer one request, wherever that is best.

        `inputs` maps the signature's input names to arrays whose first dimension is rows; one encoded picture may be
        given as `bytes`, pixels also as uint8 [height, width], [height, width, 1 or 3] or [rows, height, width].
        `deadline_s` is seconds from now; the policy's deadline holds where it is earlier. Raises `UpwellError`s; see
        `upwell.shared.errors`.
        """
        arrived_s = time.monotonic()
        arrays = as_arrays(inputs, self.model(model))
        return self.handle(model, arrays, arrived_s + deadline_s, tags, id, arrived_s)

    def handle(
        self,
        model: str,
        inputs: Mapping[str, Array],
        deadline_s: float,
        tags: Mapping[str, str],
        id: str,
        arrived_s: float,
    ) -> Answer:
        """Answer one request whose `deadline_s` and `arrived_s` are instants of the monotonic clock."""
        served = self.model(model)
        if self._closed:
            raise Unavailable("the agent is closed")
        try:
            if not arrived_s < deadline_s:  # so that NaN is no deadline to work for either
                raise DeadlineExceeded("the deadline had passed when the request arrived")
            answer = Handling(self._desk, served, inputs, deadline_s, tags, id or uuid.uuid4().hex, arrived_s).run()
        except UpwellError as error:
            self.metrics.failed(model, error)
            raise
        self.metrics.answered(model, answer)
        if answer.degraded:
            _log.debug("degraded answer: model=%s reason=%s id=%s", model, answer.reason, answer.id)
        return answer

    def model(self, name: str) -> ServedModel:
        """The model of that name. Raises `ModelNotFound` with those that there are."""
        try:
            return self.models[name]
        except KeyError:
            known = ", ".join(sorted(self.models)) or "none"
            raise ModelNotFound(f"unknown model {name!r}; this agent serves: {known}") from None

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Free models and channel. Requests after it raise `Unavailable`; calling it twice is harmless."""
        self._closed = True
        if self.uplink is not None:
            self.uplink.close()
        for model in self.models.values():
            if model.edge is not None:
                model.edge.close()
        if self._state_dir is not None:
            self._state_dir.close()

    def __enter__(self) -> Agent:
        """The agent itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

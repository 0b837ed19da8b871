"""The agent inside your own program: answers from the device or the cloud, in time and with a reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from upwell.shared.platform.closing import Closing
from upwell.shared.platform.collection_pause import without_collections

if TYPE_CHECKING:  # imported when an agent is made, since that takes long
    from upwell.edge.models.edge_model import ModelHealth
    from upwell.edge.request.answer import Answer
    from upwell.edge.server.agent_core import AgentCore
    from upwell.edge.spool.spooled_request import SpoolResult
    from upwell.shared.tensors import Array

_NO_TAGS: Mapping[str, str] = MappingProxyType({})


class Agent(Closing):
    """Serves models in this process. Safe to use from many threads; close it, or use it as a context manager."""

    def __init__(self, core: AgentCore) -> None:
        self.core = core
        """Its parts, for the rest of upwell; they may change with any version."""

    @classmethod
    def from_config(cls, path: str | Path, on_result: Callable[[SpoolResult], None] | None = None) -> Agent:
        """Load the agent that `agent.yaml` describes and warm up its models. Raises `ConfigError`.

        It serves `agent.metrics` and ignores what concerns other callers (`listen` and the like), with a log line.
        `on_result` is called on one of the agent's threads with each cloud answer to a spooled case.
        """
        with without_collections():
            from upwell.edge.server.agent_assembly import embedded_agent

        return cls(embedded_agent(Path(path), on_result))

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Array | bytes],
        *,
        deadline_s: float = math.inf,
        tags: Mapping[str, str] = _NO_TAGS,
        id: str = "",
        traceparent: str = "",
    ) -> Answer:
        """Answer one request on the best route.

        `inputs` maps the signature's input names to arrays whose first dimension is rows; one encoded picture may be
        given as `bytes`, pixels also as uint8 [height, width], [height, width, 1 or 3] or [rows, height, width].
        `deadline_s` is seconds from now; the policy's deadline holds where it is earlier. `traceparent` is the caller's
        place in a trace (W3C Trace Context). Raises `UpwellError`s; see `upwell.shared.errors`.
        """
        return self.core.infer(model, inputs, deadline_s=deadline_s, tags=tags, id=id, traceparent=traceparent)

    def health(self) -> Sequence[ModelHealth]:
        """The health of each model on the device: where it runs, the evidence, and why it is not where it should be."""
        return self.core.health()

    def health_document(self) -> dict[str, Any]:
        """The content of `/health`, ready for JSON."""
        return self.core.health_document()

    def close(self) -> None:
        """Free models and channels. Requests after it raise `Unavailable`; calling it twice is harmless."""
        self.core.close()

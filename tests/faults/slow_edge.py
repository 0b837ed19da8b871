"""An agent whose device takes its time: the official fake runtime behind everything else that is real."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from tests.faults.oracles import CLOUD_MODEL
from upwell.edge.models.edge_model import EdgeModel, ModelSource, ServedModel
from upwell.edge.runtimes.fake import Behaviour, FakeRuntime
from upwell.edge.server.agent_core import AgentCore
from upwell.edge.uplink.uplink import UplinkSettings
from upwell.shared.config.security import ClientSecurity
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.signature.processor import Processor
from upwell.shared.tensors import Array, TensorSpec

IMAGE = TensorSpec("image", "BYTES", (-1,))
SCORES = TensorSpec("scores", "FP32", (-1, 10))


def unsure(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The fake model: every class is equally likely."""
    return {"scores": np.full((len(inputs["image"]), 10), 0.1, dtype=np.float32)}


@contextmanager
def slow_agent(
    latency_s: float, policy: Mapping[str, Any], cloud: str | None = None
) -> Iterator[tuple[AgentCore, FakeRuntime]]:
    """An agent whose model `digits` takes `latency_s` on the device, and knows it; `cloud` is an endpoint."""
    runtime = FakeRuntime(unsure, [IMAGE], [SCORES], behaviour=Behaviour(latency_s=latency_s))
    edge = EdgeModel(runtime, Processor(None, runtime.inputs, runtime.outputs, "fake"), ModelSource("sha256:fake"))
    uplink = None if cloud is None else UplinkSettings(cloud, ClientSecurity(), 1 << 20)
    model = ServedModel("digits", edge, "" if cloud is None else CLOUD_MODEL)
    with AgentCore([model], uplink, Policy.model_validate({"version": 1, **policy})) as agent:
        yield agent, runtime

"""Agents made in one line: a fake runtime on the device, a real server of the protocol as the cloud.

The model takes probabilities (`fp32`, so a test says how hard each row is) and the number of each row (`fp64`). The
device gives the numbers back negative, the cloud as they are: an output tells which side answered which row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from upwell.edge import Answer
from upwell.edge.models.edge_model import EdgeModel, ModelSource, ServedModel
from upwell.edge.runtimes.base import Placement
from upwell.edge.runtimes.fake import Behaviour, FakeRuntime
from upwell.edge.server.agent_core import AgentCore
from upwell.edge.uplink.uplink import UplinkSettings
from upwell.shared.config.security import ClientSecurity
from upwell.shared.config.yaml import parse_yaml
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.server.server import start_server
from upwell.shared.routing.decide.router_state import CloudAnswered, CloudCallFailed, EdgeRan
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.reasons import Reason
from upwell.shared.signature.model_yaml import ModelDescription
from upwell.shared.signature.processor import Processor
from upwell.shared.tensors import Array, TensorSpec

MODEL = "model"
CLOUD_MODEL = "echo"
MAX_MESSAGE_BYTES = 1 << 26
SURE, UNSURE = (0.9, 0.05, 0.05), (0.4, 0.35, 0.25)

DESCRIPTION = """
version: 1
signature:
  rows: {rows}
  inputs:
    fp32: {{kind: tensor, dtype: FP32, shape: [{leading}, 3]}}
    fp64: {{kind: tensor, dtype: FP64, shape: [{leading}, 1]}}
  outputs:
    fp32: {{kind: probabilities, labels: [ant, bee, "cat, small"]}}
    fp64: {{kind: tensor}}
"""


def policy(text: str) -> Policy:
    """A policy file's content as a `Policy`."""
    return parse_yaml(text, Policy)


def edge_model(
    *,
    rows: bool = True,
    leading: int = -1,
    says: Callable[[Array], Array] = lambda given: given,
    placement: Placement | None = None,
    instances: int = 1,
    **behaviour: Any,
) -> EdgeModel:
    """The device's side of the model; it `says` these probabilities."""
    specs = [TensorSpec("fp32", "FP32", (leading, 3)), TensorSpec("fp64", "FP64", (leading, 1))]

    def run(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return {"fp32": says(inputs["fp32"]), "fp64": -inputs["fp64"]}

    fake = FakeRuntime(run, specs, specs, behaviour=Behaviour(**behaviour), placement=placement, instances=instances)
    description = parse_yaml(DESCRIPTION.format(rows=str(rows).lower(), leading=leading), ModelDescription)
    processor = Processor(description, fake.inputs, fake.outputs, "onnx")
    return EdgeModel(fake, processor, ModelSource("sha256:of-the-small-model"))


def rows_of(*probabilities: Sequence[float]) -> dict[str, Array]:
    """A request of these rows, numbered from 1."""
    numbers = np.arange(1.0, len(probabilities) + 1).reshape(-1, 1)
    return {"fp32": np.array(probabilities, np.float32), "fp64": numbers}


def sides(answer: Answer) -> str:
    """Which side answered each row, read from the outputs: `e` or `c`; `?` where a row is not in its place."""
    numbers = answer.outputs["fp64"].reshape(-1).tolist()
    known = dict.fromkeys(range(1, len(numbers) + 1), "c") | {-place: "e" for place in range(1, len(numbers) + 1)}
    return "".join(known[int(n)] if abs(n) == place else "?" for place, n in enumerate(numbers, 1))


@dataclass(frozen=True)
class Scene:
    """An agent, its model's device side (None without one), and its cloud."""

    agent: AgentCore
    edge: EdgeModel | None
    cloud: FakeDataplane

    @property
    def runtime(self) -> FakeRuntime:
        """The fake on the device."""
        assert self.edge is not None
        assert isinstance(self.edge.runtime, FakeRuntime)
        return self.edge.runtime

    def infer(self, inputs: Mapping[str, Array], **how: Any) -> Answer:
        """Ask the agent."""
        return self.agent.infer(MODEL, inputs, **how)

    def teach(self, *, edge_s: float | None = None, cloud_s: float | None = None) -> None:
        """Let the router believe in these times."""
        for _ in range(5):
            if edge_s is not None:
                self.agent.router.observe(EdgeRan(MODEL, 1, edge_s))
            if cloud_s is not None:
                self.agent.router.observe(CloudAnswered(MODEL, 1, 100, cloud_s, 0.0))

    def cut(self) -> None:
        """Let the router believe that the cloud is down."""
        for _ in range(3):
            self.agent.router.observe(CloudCallFailed(MODEL, Reason.CLOUD_UNAVAILABLE))


@contextmanager
def scene(text: str = "version: 1", *, edge: EdgeModel | None = None, device: bool = True) -> Iterator[Scene]:
    """An agent by this policy; without `device` the model is in the cloud alone."""
    edge = (edge or edge_model()) if device else None
    cloud = FakeDataplane()
    server = start_server(cloud, ["127.0.0.1:0"], max_workers=16)
    try:
        uplink = UplinkSettings(server.addresses[0], ClientSecurity(), MAX_MESSAGE_BYTES)
        with AgentCore([ServedModel(MODEL, edge, CLOUD_MODEL)], uplink, policy(text)) as agent:
            yield Scene(agent, edge, cloud)
    finally:
        cloud.release()
        server.stop(0.0)


@contextmanager
def busy(edge: EdgeModel) -> Iterator[None]:
    """The device's scheduler held by somebody else."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with edge.scheduler.acquire(float("inf")):
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()

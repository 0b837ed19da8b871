"""The cut that the agent comes to by itself on a real link, beside the one that a plan from profiles names.

The device is simulated: this machine, stretched eightfold.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks.simulated_split import Bed, Planned, profilers, steady, stretched
from tests.faults.trace_link import TraceLink
from tests.integration.agent.harness import write
from tests.integration.agent.splits import by_split
from tests.models.int8 import quantized
from tests.models.mobilenet import build_mobilenet_v2
from upwell.edge.runtimes.onnx.runtime import OnnxRuntime
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.edge.server.agent_core import AgentCore
from upwell.shared.partition.cost_graph import TierLink
from upwell.shared.partition.cut_candidates import cuts_of
from upwell.shared.routing.reasons import Route
from upwell.shared.tensors import Array

MODEL = "mobilenet"
SLOW_BPS, FAST_BPS, RTT_S = 1e6, 100e6, 0.02
ASKED, LAST = 12, 6
"""Requests over each link, of which the last ones show what the agent has settled on."""


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    """MobileNetV2 int8, where few bytes cost much of the device's time and the other way round."""
    path = tmp_path / "model.onnx"
    path.write_bytes(quantized(build_mobilenet_v2(), tmp_path, rows=2).SerializeToString())
    edge, cloud = (profiler.profile(lambda: None).profile for profiler in profilers(path, points=6, runs=3))
    return Planned(path, edge, cloud)


@contextlib.contextmanager
def agent_over(bed: Bed, planned: Planned, folder: Path, address: str) -> Iterator[AgentCore]:
    """An agent with the heads of `bed`, every request of which is split."""
    edge = {"file": str(planned.path), "threads": 1, "instances": 1}
    config = write(folder, "agent.yaml", {
        "cloud": {"endpoint": address},
        "policy": str(write(folder, "policy.yaml", by_split("60s"))),
        "models": {MODEL: {"edge": edge, "cloud": {"model": MODEL}, "split": str(bed.split)}},
    })  # fmt: skip
    with embedded_agent(config) as agent:
        yield agent


@pytest.mark.slow
def test_the_agent_comes_to_the_cut_of_the_plan(
    planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_plan = {bps: planned.chosen(TierLink(bps, RTT_S), cut=True) for bps in (SLOW_BPS, FAST_BPS)}
    assert planned.edge_side(of_plan[FAST_BPS]) < planned.edge_side(of_plan[SLOW_BPS])
    planned.prefix(max(cuts_of(planned.graph, {}), key=lambda cut: cut.bytes).nodes)  # to be left alone
    with contextlib.closing(Bed(planned, tmp_path, MODEL)) as bed, bed.service() as service:
        run = OnnxRuntime.run

        def slow(self: OnnxRuntime, inputs: dict[str, Array]) -> dict[str, Array]:
            return stretched(lambda given: run(self, given))(inputs)

        monkeypatch.setattr(OnnxRuntime, "run", slow)
        for bps, cut in of_plan.items():
            link = TraceLink(service.address, steady(bps), RTT_S)
            with link, agent_over(bed, planned, tmp_path, link.address) as agent:
                answers = [agent.infer(MODEL, bed.inputs, deadline_s=60.0) for _ in range(ASKED)]
            assert {answer.route for answer in answers} == {Route.SPLIT}
            assert statistics.mode(answer.cut for answer in answers[-LAST:]) == cut, [one.cut for one in answers]

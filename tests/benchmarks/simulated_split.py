"""A model that is profiled, planned, split and served, with a simulated device: what the figures of plans are tried on.

Everything is real but the device: this machine, made slower by sleeping after each run of a model there seven times as
long as it took. Its times in profiles are multiplied by eight, so that both tell of the same device.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.faults.trace_link import PACKET_BYTES, Trace
from tests.integration.cloud.serving import Service, serving
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient
from upwell.shared.partition.bandwidth import BandwidthSweep, envelope
from upwell.shared.partition.cost_graph import CostGraph, Placement, TierLink, sent, total_s
from upwell.shared.partition.cut_candidates import cuts_of
from upwell.shared.partition.graph_contraction import contract
from upwell.shared.partition.objectives import latency
from upwell.shared.partition.planner import Cutter
from upwell.shared.partition.read_graph import read_graph
from upwell.shared.partition.split.cut_choice import ChosenCut
from upwell.shared.partition.split.split_file import CutFacts
from upwell.shared.partition.split.split_model import UnsplitModel
from upwell.shared.partition.split.split_writer import write_split
from upwell.shared.partition.tier_profile import CLOUD, EDGE, Profile, combine, cut_name, measured_cuts
from upwell.shared.tensors import Array
from upwell.tools.partition.part_bench import TierOptions
from upwell.tools.partition.profiler import Profiler, Wishes
from upwell.tools.partition.tiers import CloudTier, EdgeTier

STRETCH = 8.0
ONE_THREAD = TierOptions(threads=1)
BUDGET_S = 120.0
PATIENCE_S = 300.0
SINK = "sink"
"""A model that takes any number of floats and gives the largest: its requests show what asking itself takes."""

Run = Callable[[Mapping[str, Array]], dict[str, Array]]


def stretched(run: Run) -> Run:
    """The simulated device: `run` as if this machine were that much slower."""

    def slow(inputs: Mapping[str, Array]) -> dict[str, Array]:
        started_s = time.perf_counter()
        made = run(inputs)
        time.sleep((STRETCH - 1) * (time.perf_counter() - started_s))
        return made

    return slow


def steady(bps: float, length_s: float = 3.0) -> Trace:
    """A link that always carries the same."""
    gap_ms = PACKET_BYTES * 8e3 / bps
    return Trace([math.ceil(packet * gap_ms) for packet in range(1, round(length_s * 1e3 / gap_ms) + 1)])


def profilers(path: Path, points: int, runs: int) -> Iterator[Profiler]:
    """What measures the model on the simulated device, and then at the service: so many cuts and runs of each."""
    graph = contract(read_graph(path))
    yield Profiler(path, graph, EdgeTier(ONE_THREAD), Wishes("edge", points, runs, BUDGET_S, 1, STRETCH), {})
    yield Profiler(path, graph, CloudTier(ONE_THREAD), Wishes("cloud", points, runs, BUDGET_S, 1), {})


class Planned:
    """A model with its profiles, planned for links; ways are named by `cut_name`.

    `ways` are those that were asked for so far.
    """

    def __init__(self, path: Path, edge: Profile, cloud: Profile) -> None:
        self.path = path
        self.graph = contract(read_graph(path))
        self.profiled = measured_cuts(edge, cloud)
        self.ways: dict[str, Placement] = {}
        self._costs = combine(edge, cloud, TierLink(1.0))

    def costs(self, link: TierLink) -> CostGraph:
        """What is planned with."""
        return replace(self._costs, links=(link,))

    def total_s(self, name: str, link: TierLink) -> float:
        """What a way is predicted to take."""
        return total_s(self.costs(link), self.ways[name])

    def sent_bytes(self, name: str) -> float:
        """What a way sends up."""
        return sum(one.bytes for one in sent(self._costs, self.ways[name]))

    def tier_s(self, name: str, tier: str) -> float:
        """What a way takes on one tier."""
        placement = self.ways[name]
        return math.fsum(node.cost_on(tier) for node in self._costs.nodes if placement[node.name] == tier)

    def edge_side(self, name: str) -> frozenset[int]:
        """The nodes of a way on the device."""
        return frozenset(i for i, node in enumerate(self.graph.nodes) if self.ways[name][node.name] == EDGE)

    def chosen(self, link: TierLink, *, cut: bool = False) -> str:
        """The best way over this link; with `cut` the best that has nodes on both sides."""
        tiers = (EDGE, CLOUD) if cut else ()
        return self._add(Cutter(replace(self.costs(link), non_empty=tiers)).solve())

    def of_envelope(self, link: TierLink) -> list[str]:
        """The ways that are best at any uplink, with what else there is to say of the link, the slowest first."""
        sweep = BandwidthSweep(self.costs(link), latency((EDGE, CLOUD)))
        cutter = Cutter(sweep.weighed)
        return [self._add(piece.line.of.placement) for piece in envelope(sweep, lambda at: cutter.solve(at.links))]

    def beside(self, names: Iterable[str]) -> list[str]:
        """The legal cuts of the order next to these ways, on either side, and the two ends."""
        legal = [cut.nodes for cut in cuts_of(self.graph, {})]
        counts = {0, len(self.graph.nodes)}
        for here in [len(self.edge_side(name)) for name in names]:
            counts |= {max((one for one in legal if one < here), default=here)}
            counts |= {min((one for one in legal if one > here), default=here)}
        return [self.prefix(count) for count in sorted(counts)]

    def prefix(self, nodes: int) -> str:
        """The way with so many nodes on the device, the first of the order."""
        names = [node.name for node in self.graph.nodes]
        return self._add({name: EDGE if index < nodes else CLOUD for index, name in enumerate(names)})

    def _add(self, placement: Placement) -> str:
        name = cut_name(self._costs, placement)
        self.ways.setdefault(name, placement)
        return name


class Bed:
    """All ways of `planned` laid out in a folder, with the heads open on the simulated device.

    `split/` is what `upwell partition split` writes, `served/` holds the tails, the whole and `SINK`.
    """

    def __init__(self, planned: Planned, folder: Path, name: str) -> None:
        self.name = name
        self.split, self.served = folder / "split", folder / "served"
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._cuts: dict[str, CutFacts] = {}
        self._runs: dict[str, Run] = {}
        self.inputs: dict[str, Array] = {}
        whole = UnsplitModel.open(planned.path, planned.graph, name)
        chosen = [
            ChosenCut(way, planned.edge_side(way), planned.tier_s(way, EDGE), planned.tier_s(way, CLOUD))
            for way in planned.ways
            if way not in (EDGE, CLOUD)
        ]
        facts = write_split(self.split, whole, ((one, whole.divide(one.edge)) for one in chosen)).facts
        shutil.copytree(self.split / "tails", self.served)
        (self.served / name / "1").mkdir(parents=True)
        shutil.copy(planned.path, self.served / name / "1" / "model.onnx")
        (self.served / SINK / "1").mkdir(parents=True)
        onnx.save(_sink(), self.served / SINK / "1" / "model.onnx")
        self._open(EDGE, planned.path)
        for cut in facts.cuts:
            self._cuts[cut.name] = cut
            self._open(cut.name, self.split / cut.head)

    @contextlib.contextmanager
    def service(self) -> Iterator[Service]:
        """One instance of each model, one thread."""
        serve = {"listen": ["127.0.0.1:0"], "models": str(self.served)}
        config = self._folder / "cloud.yaml"
        config.write_text(json.dumps({"serve": serve, "defaults": {"instances": 1, "threads": 1}}))
        with serving("-c", config) as service:
            yield service

    def ask(self, client: OipClient, way: str) -> Mapping[str, Array]:
        """One request, from the input to the answer."""
        if way == CLOUD:
            return client.infer(InferRequest(self.name, self.inputs), PATIENCE_S).outputs
        made = self._runs[way](self.inputs)
        if way == EDGE:
            return made
        cut = self._cuts[way]
        tensors = {one.name: made[one.name] for one in cut.tensors}
        tensors |= {one: self.inputs[one] for one in cut.raw_inputs}
        return client.infer(InferRequest(cut.tail, tensors), PATIENCE_S).outputs

    def close(self) -> None:
        """Free the heads."""
        self._stack.close()

    def _open(self, way: str, path: Path) -> None:
        runner = EdgeTier(ONE_THREAD).open(path)
        self._stack.callback(runner.close)
        chance = np.random.default_rng(0)
        for spec in runner.inputs:
            self.inputs.setdefault(spec.name, chance.standard_normal([abs(dim) for dim in spec.shape], np.float32))
        self._runs[way] = stretched(runner.run)


def ask_sink(client: OipClient, size_bytes: int) -> None:
    """A request that sends so many bytes and does next to nothing."""
    client.infer(InferRequest(SINK, {"x": np.zeros((1, size_bytes // 4), np.float32)}), PATIENCE_S)


def _sink() -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name, size in (("x", "n"), ("y", 1))]
    node = helper.make_node("ReduceMax", ["x"], ["y"], axes=[1], keepdims=1)
    graph = helper.make_graph([node], SINK, ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

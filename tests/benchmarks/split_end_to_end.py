"""What a plan promises against what a request takes, end to end: the device simulated, everything else real.

    python -m tests.benchmarks.split_end_to_end [--quick] [--network NAME ...] [--json] [--write docs/partitioning.md]

Each network is profiled on both sides, on this one machine, and planned for every uplink. Then requests go the whole
way: the head in the agent's runtime, the cut tensors through a link with a token bucket and a delay, the tail in
`upwell serve`. The device is simulated: after each run of a head (or of the whole on the device) it sleeps seven times
as long as that took, as edge times in the profile are multiplied by eight. Beside the plan for an uplink those that are
best at other uplinks are measured, the legal cuts next to all of these, the device alone and the cloud alone.

The link in the plan is what was measured of it with requests to a model that does nothing: through the link what an
almost empty one takes (`fixed_s`), and without it what a byte costs that is packed, copied and unpacked.

Exit code 1 where a target is missed. For the figures to mean something nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from rich.progress import track

from tests.faults.trace_link import PACKET_BYTES, Trace, TraceLink
from tests.integration.cloud.serving import serving
from tests.models.int8 import quantized
from tests.models.mobilenet import build_mobilenet_v2
from tests.models.resnet import build_resnet50
from upwell.cloud.partition_tier import CloudTier
from upwell.edge.partition.tier import EdgeTier
from upwell.shared.oip.client import OipClient
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.partition.candidates import cuts_of
from upwell.shared.partition.combining import CLOUD, EDGE, combine, cut_name
from upwell.shared.partition.contraction import contract
from upwell.shared.partition.costs import CostGraph, Link, Placement
from upwell.shared.partition.envelope import Sweep, envelope
from upwell.shared.partition.graph import Graph
from upwell.shared.partition.measuring import Runner, TierOptions
from upwell.shared.partition.objectives import latency
from upwell.shared.partition.placement import sent, total_s
from upwell.shared.partition.planner import Cutter
from upwell.shared.partition.profile import Profile
from upwell.shared.partition.reading import read_graph
from upwell.shared.partition.split.choosing import Chosen
from upwell.shared.partition.split.folder import CutFacts
from upwell.shared.partition.split.writing import Made, Whole, half_paths, write_split
from upwell.shared.partition_cli.profiling import Profiler, Wishes
from upwell.shared.tensors import Array

START, END = "<!-- end-to-end -->", "<!-- /end-to-end -->"
STRETCH = 8.0
RTT_S = 0.02
MOST_ERROR, MOST_BEHIND = 0.10, 0.05
WHOLE, SINK = "whole", "sink"
PATIENCE_S = 300.0
ALIKE = 1e-4
"""Of the largest score: kernels fuse differently in halves."""
BURST, SLOW_S = 3, 1.0
"""Requests of a way at a time, after one that is not timed; one alone where it takes longer than this."""
FEWEST_ROUNDS, FAR = 2, 1.5
"""Ways that took so many times as long as the best in so many rounds are not measured further."""
LINK_REQUESTS = 30
TIER = TierOptions(threads=1)


def mobilenet_v2_int8(size: int = 224, width: float = 1.0) -> onnx.ModelProto:
    """U8U8, as `upwell model quantize` makes it."""
    with tempfile.TemporaryDirectory() as folder:
        return quantized(build_mobilenet_v2(width, size), Path(folder))


NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "MobileNetV2": build_mobilenet_v2,
    "MobileNetV2 int8": mobilenet_v2_int8,
    "ResNet-50": build_resnet50,
}
SMALL: Mapping[str, Callable[[], onnx.ModelProto]] = {"MobileNetV2 0.5, 96 pixels": lambda: build_mobilenet_v2(0.5, 96)}


@dataclass(frozen=True)
class Effort:
    """How much is measured: cuts of a profile and runs of each, uplinks, and how often every way is visited."""

    networks: Mapping[str, Callable[[], onnx.ModelProto]]
    uplinks_bps: Sequence[float]
    points: int
    runs: int
    rounds: int


FULL = Effort(NETWORKS, (1e6, 5e6, 20e6, 100e6), points=16, runs=24, rounds=5)
QUICK = Effort(SMALL, (5e6, 100e6), points=5, runs=6, rounds=2)


@dataclass(frozen=True)
class Taken:
    """One way of answering at one uplink; `times_s` of requests end to end. `profiled`: the profiles hold this cut."""

    name: str
    nodes: int
    sent_bytes: float
    profiled: bool
    predicted_s: float
    times_s: tuple[float, ...]

    @property
    def measured_s(self) -> float:
        """The median."""
        return statistics.median(self.times_s)

    @property
    def error(self) -> float:
        """Of the prediction, as a part of what was measured."""
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True)
class Row:
    """A network at an uplink: all ways that were measured, the plan's own first."""

    network: str
    uplink_bps: float
    fixed_s: float
    ways: tuple[Taken, ...]

    @property
    def chosen(self) -> Taken:
        """What the plan says."""
        return self.ways[0]

    @property
    def best(self) -> Taken:
        """What took the least."""
        return min(self.ways, key=lambda way: way.measured_s)

    @property
    def behind(self) -> float:
        """How much longer than the best the plan's way takes."""
        return self.chosen.measured_s / self.best.measured_s - 1


def steady(bps: float, length_s: float = 3.0) -> Trace:
    """A link that always carries the same."""
    gap_ms = PACKET_BYTES * 8e3 / bps
    return Trace([math.ceil(packet * gap_ms) for packet in range(1, round(length_s * 1e3 / gap_ms) + 1)])


def stretched(run: Callable[..., dict[str, Array]]) -> Callable[..., dict[str, Array]]:
    """The simulated device: `run` as if this machine were that much slower."""

    def slow(*arguments: object, **options: object) -> dict[str, Array]:
        started_s = time.perf_counter()
        made = run(*arguments, **options)
        time.sleep((STRETCH - 1) * (time.perf_counter() - started_s))
        return made

    return slow


class Planned:
    """A network with its profiles, planned for links; ways are named by `cut_name`."""

    def __init__(self, path: Path, effort: Effort) -> None:
        self.path = path
        self.graph: Graph = contract(read_graph(path))
        profiles: list[Profile] = []
        for tier, stretch in ((EdgeTier(TIER), STRETCH), (CloudTier(TIER), 1.0)):
            side = "edge" if stretch > 1 else "cloud"
            wishes = Wishes(side, effort.points, effort.runs, 60.0, 1, stretch)  # type: ignore[arg-type]  # a literal
            profiles.append(Profiler(path, tier, wishes, {}).profile(lambda: None).profile)
        self.edge, self.cloud = profiles
        self.profiled = {point.nodes for point in self.edge.points} & {point.nodes for point in self.cloud.points}
        self.ways: dict[str, Placement] = {}

    def costs(self, link: Link) -> CostGraph:
        """What is planned with."""
        return combine(self.edge, self.cloud, link)

    def chosen(self, link: Link) -> str:
        """The best way over this link."""
        placement = Cutter(self.costs(link)).solve()
        return self._add(placement)

    def add_ways(self, link: Link) -> None:
        """Take in what is best at any uplink, the legal cuts of the order next to those, and the two ends."""
        sweep = Sweep(self.costs(link), latency((EDGE, CLOUD)))
        cutter = Cutter(sweep.weighed)
        found = [piece.line.of.placement for piece in envelope(sweep, lambda at: cutter.solve(at.links))]
        legal = [cut.nodes for cut in cuts_of(self.graph, {})]
        counts = {0, len(self.graph.nodes)}
        for placement in found:
            self._add(placement)
            here = sum(tier == EDGE for tier in placement.values())
            counts |= {max((n for n in legal if n < here), default=0), min((n for n in legal if n > here), default=0)}
        for count in sorted(counts):
            names = [node.name for node in self.graph.nodes]
            self._add({name: EDGE if index < count else CLOUD for index, name in enumerate(names)})

    def _add(self, placement: Placement) -> str:
        name = cut_name(self._names, placement)
        self.ways.setdefault(name, placement)
        return name

    @property
    def _names(self) -> CostGraph:
        return self.costs(Link(1.0))

    def edge_side(self, name: str) -> frozenset[int]:
        """The nodes of a way on the device."""
        return frozenset(i for i, node in enumerate(self.graph.nodes) if self.ways[name][node.name] == EDGE)


class Bed:
    """Everything that answers: heads of `planned` on the simulated device, tails in a service at `address`."""

    def __init__(self, planned: Planned, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._inputs: dict[str, Array] = {}
        self._heads: dict[str, Callable[..., dict[str, Array]]] = {}
        self._cuts: dict[str, CutFacts | None] = {EDGE: None, CLOUD: None}
        self.served = folder / "served"
        whole = Whole.open(planned.path, planned.graph, WHOLE)
        cuts = {name: planned.edge_side(name) for name in planned.ways if name not in self._cuts}
        made = (Made(Chosen(name, edge), whole.divide(edge)) for name, edge in cuts.items())
        facts = write_split(folder / "split", whole, made).facts
        shutil.move(folder / "split" / "tails", self.served)
        place = self.served / WHOLE / "1"
        place.mkdir(parents=True)
        shutil.copy(planned.path, place / "model.onnx")
        for cut in facts.cuts:
            self._cuts[cut.name] = cut
        self._open(EDGE, planned.path)
        for cut in facts.cuts:
            self._open(cut.name, folder / "split" / cut.head)

    def _open(self, name: str, path: Path) -> None:
        runner: Runner = EdgeTier(TIER).open(path)
        self._stack.callback(runner.close)
        chance = np.random.default_rng(0)
        for spec in runner.inputs:
            self._inputs.setdefault(spec.name, chance.standard_normal([abs(n) for n in spec.shape], np.float32))
        self._heads[name] = stretched(runner.run)

    def ask(self, client: OipClient, name: str) -> Mapping[str, Array]:
        """One request by one way, from the input to the answer."""
        cut = self._cuts[name]
        if name == CLOUD:
            return client.infer(InferRequest(WHOLE, self._inputs), PATIENCE_S).outputs
        made = self._heads[name](self._inputs)
        if cut is None:
            return made
        tensors = {one.name: made[one.name] for one in cut.tensors}
        tensors |= {one: self._inputs[one] for one in cut.raw_inputs}
        return client.infer(InferRequest(cut.tail, tensors), PATIENCE_S).outputs

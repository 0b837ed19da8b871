"""Measures one model on one tier and makes its profile: which model, where and how, its graph and its points."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from upwell.shared.errors import ConfigError
from upwell.shared.partition.cut_candidates import Cut, cuts_of, ranked, refined
from upwell.shared.partition.model_graph import Graph, known_bytes
from upwell.shared.partition.split.model_halves import Halves, ModelHalf
from upwell.shared.partition.split.split_model import open_model_file, split_model
from upwell.shared.partition.tier_profile import (
    Machine,
    ModelFacts,
    NodeFacts,
    Point,
    Profile,
    Spread,
    TensorFacts,
    certainty,
    falling,
    rising,
)
from upwell.shared.tensors import Array
from upwell.tools.devices.system_findings import processor
from upwell.tools.partition.part_bench import (
    FEWEST_RUNS,
    Bench,
    MeasuredPart,
    Opened,
    PartitionTier,
    Runner,
    spread_of,
)
from upwell.tools.partition.profile_inputs import inputs_of, runtime_names

WHOLE = MeasuredPart("whole")
_MEMORY_PART = 8
"""The share of memory for files of open models (1/N); runtimes take two or three times their size."""
_LEAST_MEMORY_BYTES = 256 << 20
_FIRST = 0.75
"""The share of points chosen by the graph alone; the measurement chooses the others."""
_COMPARED = 3
"""Number of cuts whose other half is measured too, to find the cost of cutting."""
_NOTHING = Spread(median_s=0.0, p10_s=0.0, p90_s=0.0, runs=1)


@dataclass(frozen=True)
class Wishes:
    """What to profile. `points` None: every legal cut of the order. `stretch` 1: the machine as it is."""

    tier: Literal["edge", "cloud"]
    points: int | None
    runs: int
    budget_s: float
    rows: int
    stretch: float = 1.0


@dataclass(frozen=True)
class Cutting:
    """Both parts of a cut on this one machine, beside the whole: medians in seconds."""

    nodes: int
    head_s: float
    tail_s: float
    whole_s: float

    @property
    def overhead(self) -> float:
        """What cutting adds, as a share of the whole."""
        return (self.head_s + self.tail_s) / self.whole_s - 1


@dataclass(frozen=True)
class ProfileOutcome:
    """A profile, the cost of cutting, and the cuts (by number of nodes) that could not be measured, with the reason."""

    profile: Profile
    cutting: Sequence[Cutting]
    left_out: Mapping[int, str]


class Profiler:
    """Measures the model at `path`, whose contracted graph is `graph`, on one tier."""

    def __init__(
        self, path: Path, graph: Graph, tier: PartitionTier, wishes: Wishes, given: Mapping[str, Array]
    ) -> None:
        self._path = path
        self._tier = tier
        self._wishes = wishes
        self._graph = graph
        self._whole = open_model_file(path, graph)
        self._placements: dict[MeasuredPart, str] = {}
        self._tail_inputs: dict[int, Mapping[str, Array]] = {}
        with contextlib.closing(tier.open(path)) as runner:
            names = runtime_names(runner.inputs, self._graph.inputs)
            arrays, self._sizes = inputs_of(self._graph, names, wishes.rows, given)
            own = {names[name]: array for name, array in arrays.items()}
            runner.run(own)
            self._inputs = {**own, **arrays}  # parts of a TFLite model use the names that callers see
            self._runtime = runner.runtime
        self._cuts = cuts_of(self._graph, self._sizes)
        self._ranked = ranked(self._cuts)
        wanted = math.inf if wishes.points is None else wishes.points - 2
        self._wanted = int(min(wanted, len(self._ranked)))
        self._compared = self._ranked[: min(_COMPARED, self._wanted)]

    @property
    def steps(self) -> int:
        """The approximate number of steps."""
        parts = self._wanted + 1 + len(self._compared)
        return parts * (2 + math.ceil(self._wishes.runs / FEWEST_RUNS))

    def profile(self, tick: Callable[[], None]) -> ProfileOutcome:
        """Measure; `tick` is called after every step. Raises `UpwellError` if the whole model cannot be run."""
        until_s = time.perf_counter() + self._wishes.budget_s
        first = self._ranked[: math.ceil(_FIRST * self._wanted)]
        bench = Bench(self._opened, time.perf_counter, random.Random(1), _memory_bytes(), tick)  # noqa: S311  no secret
        with contextlib.closing(bench):
            bench.measure([WHOLE, *map(self._part, first)], FEWEST_RUNS, until_s)
            if WHOLE in bench.failed:
                raise ConfigError.at(self._path, f"the model cannot be measured: {bench.failed[WHOLE]}")
            chosen = [*first, *self._more(bench, self._wanted - len(first))]
            others = [*map(self._part, chosen[len(first) :]), *map(self._other, self._compared)]
            bench.measure(others, FEWEST_RUNS, until_s)
            bench.measure([WHOLE, *map(self._part, first), *others], self._wishes.runs - FEWEST_RUNS, until_s)
        return self._outcome(bench, chosen)

    def _part(self, cut: Cut) -> MeasuredPart:
        return MeasuredPart("head" if self._wishes.tier == "edge" else "tail", cut.nodes)

    def _other(self, cut: Cut) -> MeasuredPart:
        return MeasuredPart("tail" if self._wishes.tier == "edge" else "head", cut.nodes)

    def _ends_s(self, whole_s: float) -> dict[int, float]:
        """The times of the two ends, by number of nodes."""
        heads = self._wishes.tier == "edge"
        return {0: 0.0 if heads else whole_s, len(self._graph.nodes): whole_s if heads else 0.0}

    def _more(self, bench: Bench, count: int) -> Sequence[Cut]:
        medians = {part: statistics.median(times) for part, times in bench.samples.items()}
        failed = {part.nodes for part in bench.failed}
        measured = {part.nodes: median for part, median in medians.items() if part != WHOLE}
        cuts = [cut for cut in self._cuts if cut.nodes not in failed]
        return refined({**measured, **self._ends_s(medians[WHOLE])}, cuts, count)

    def _opened(self, part: MeasuredPart) -> Opened:
        """A `MeasuredPart` as the tier runs it, with inputs for it; its files are deleted afterwards."""
        with contextlib.ExitStack() as stack:
            arrays: Mapping[str, Array] = self._inputs
            if part == WHOLE:
                runner, size_bytes = self._tier.open(self._path), self._path.stat().st_size
                names = runtime_names(runner.inputs, self._graph.inputs)
            else:
                halves = split_model(self._whole, self._graph, frozenset(range(part.nodes)))
                half = halves.head if part.kind == "head" else halves.tail
                if part.kind == "tail":
                    arrays = self._tail_arrays(part.nodes, halves)
                runner, size_bytes = self._run(half, stack), half.size_bytes
                names = runtime_names(runner.inputs, tuple(tensor.name for tensor in half.inputs))
            stack.callback(self._close, part, runner)
            feed = {own: arrays[name] for name, own in names.items()}
            return Opened(lambda: runner.run(feed), stack.pop_all().close, size_bytes)

    def _close(self, part: MeasuredPart, runner: Runner) -> None:
        self._placements[part] = runner.placement
        runner.close()

    def _run(self, half: ModelHalf, stack: contextlib.ExitStack) -> Runner:
        """The part, loaded from a folder that is deleted with `stack`."""
        return self._tier.open(half.write(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="upwell-")))))

    def _tail_arrays(self, nodes: int, halves: Halves) -> Mapping[str, Array]:
        """The head's outputs, so that the tail gets real inputs, together with the model's own inputs."""
        if nodes not in self._tail_inputs:
            with contextlib.ExitStack() as stack:
                runner = self._run(halves.head, stack)
                stack.callback(runner.close)
                takes = runtime_names(runner.inputs, tuple(tensor.name for tensor in halves.head.inputs))
                gives = runtime_names(runner.outputs, tuple(tensor.name for tensor in halves.head.outputs))
                made = runner.run({own: self._inputs[name] for name, own in takes.items()})
                self._tail_inputs[nodes] = {**self._inputs, **{name: made[gives[name]] for name in halves.cut}}
        return self._tail_inputs[nodes]

    def _outcome(self, bench: Bench, chosen: Sequence[Cut]) -> ProfileOutcome:
        stretch = self._wishes.stretch
        spreads = {part: spread_of(times, stretch) for part, times in bench.samples.items()}
        whole = spreads[WHOLE]
        parts = {cut.nodes: self._part(cut) for cut in chosen}
        left_out = {nodes: bench.failed[part] for nodes, part in sorted(parts.items()) if part in bench.failed}
        measured = {nodes: spreads[part] for nodes, part in parts.items() if part in spreads}
        ends = {nodes: whole if time_s else _NOTHING for nodes, time_s in self._ends_s(whole.median_s).items()}
        cutting = []
        for cut in self._compared:
            head, tail = MeasuredPart("head", cut.nodes), MeasuredPart("tail", cut.nodes)
            if head in spreads and tail in spreads:
                cutting.append(Cutting(cut.nodes, spreads[head].median_s, spreads[tail].median_s, whole.median_s))
        points = self._points({**measured, **ends}, {**parts, **dict.fromkeys(ends, WHOLE)})
        return ProfileOutcome(self._profile(points), sorted(cutting, key=lambda one: one.nodes), left_out)

    def _profile(self, points: tuple[Point, ...]) -> Profile:
        graph, stretch = self._graph, self._wishes.stretch
        simulated = f"times of this machine multiplied by {stretch:g}" if stretch != 1 else ""
        system = f"{platform.system()} {platform.release()}"
        found = processor()
        cpu = f"{found.model or found.machine}, {found.cores} cores"
        named = [name for node in graph.nodes for name in (*node.inputs, *node.outputs)]
        known = [graph.tensors[name] for name in dict.fromkeys((*graph.inputs, *named, *graph.outputs))]
        rows = {dim for name in graph.inputs for dim in (graph.tensors[name].shape or ())[:1]}
        return Profile(
            tier=self._wishes.tier,
            model=ModelFacts(
                name=self._path.name,
                format=graph.format,
                digest=self._whole.digest,
                rows=self._wishes.rows,
                sizes={dim: size for dim, size in self._sizes.items() if dim not in rows},
            ),
            machine=Machine(name=platform.node(), system=system, processor=cpu, simulated=simulated),
            runtime=self._runtime,
            nodes=tuple(
                NodeFacts(name=node.name, op=node.op, inputs=node.inputs, outputs=node.outputs, work=node.work)
                for node in graph.nodes
            ),
            tensors={
                one.name: TensorFacts(datatype=one.datatype, bytes=known_bytes(one, self._sizes)) for one in known
            },
            inputs=graph.inputs,
            outputs=graph.outputs,
            points=points,
        )

    def _points(self, measured: Mapping[int, Spread], parts: Mapping[int, MeasuredPart]) -> tuple[Point, ...]:
        nodes = sorted(measured)
        crossing = {cut.nodes: cut.tensors for cut in self._cuts}
        correct = rising if self._wishes.tier == "edge" else falling
        medians = [measured[one].median_s for one in nodes]
        corrected = correct(medians, [certainty(measured[one]) for one in nodes])
        return tuple(
            Point(
                nodes=one,
                tensors=crossing[one],
                measured=measured[one],
                corrected_s=time_s,
                placement=self._placements.get(parts[one], "") if measured[one] is not _NOTHING else "",
            )
            for one, time_s in zip(nodes, corrected, strict=True)
        )


def _memory_bytes() -> int:
    """Memory for the files of models that are open at the same time, in bytes."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    return max(machine // _MEMORY_PART, _LEAST_MEMORY_BYTES)

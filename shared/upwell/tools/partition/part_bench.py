"""Measures parts of a model against each other: warm, repeated and interleaved, so that drift affects all alike."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import ClassVar, Literal, Protocol, cast

from upwell.shared.errors import ConfigError, UpwellError
from upwell.shared.partition.tier_profile import RuntimeFacts, Spread
from upwell.shared.platform.collection_pause import without_collections
from upwell.shared.tensors import Array, TensorSpec

_GROUP = "upwell.partition_tiers"

FEWEST_RUNS = 3
"""Minimum timed runs of every part, even when the time is up."""
BURST = 3
"""Consecutive timed runs, after an untimed one that brings code and weights back into the caches."""
_TURNS = 3
_MOST_WARMING, _CALM_RUNS, _FASTER = 12, 2, 0.95


@dataclass(frozen=True)
class TierOptions:
    """How a tier runs models. `threads` None: the default of the agent or the service.

    `rows`: the batch that is measured. `accelerator` is named as in agent.yaml; empty for the CPU.
    """

    threads: int | None = None
    rows: int = 1
    accelerator: str = ""
    library: Path | None = None
    options: Mapping[str, str] = field(default_factory=dict)


class Runner(Protocol):
    """A model loaded by a tier."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    runtime: RuntimeFacts

    @property
    def placement(self) -> str:
        """The part of the model that the accelerator took, by the runtime's own evidence so far; "" on the CPU."""
        ...

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run it once: an array for each of `inputs` gives one for each of `outputs`. Raises `UpwellError`."""
        ...

    def close(self) -> None:
        """Free it."""
        ...


class PartitionTier(Protocol):
    """The class behind an entry point of the group `upwell.partition_tiers`, constructed with `TierOptions`.

    It opens models as this side of the system does when it serves them. `formats` are those it can run.
    """

    formats: ClassVar[tuple[str, ...]]

    def __init__(self, options: TierOptions) -> None: ...

    def open(self, path: Path) -> Runner:
        """Load a model file. Raises `UpwellError`, which for a missing package names its extra."""
        ...


def open_tier(name: str, model_format: str, options: TierOptions) -> tuple[PartitionTier, str]:
    """The tier that measures models of this format for the side `name` (`edge` or `cloud`), and its name.

    A format that this side does not run is measured on the other one: a TFLite tail runs in an agent that serves as
    gateway. Raises `ConfigError` if there is none, and for options that it refuses.
    """
    entries = sorted(entry_points(group=_GROUP), key=lambda entry: (entry.name != name, entry.name))
    for entry in entries:
        tier = entry.load()
        if model_format in tier.formats:
            return cast(PartitionTier, tier(options)), entry.name
    known = ", ".join(entry.name for entry in entries) or "none"
    raise ConfigError.at(None, f"no installed tier ({known}) runs {model_format} models", "--tier")


@dataclass(frozen=True)
class MeasuredPart:
    """A part to measure: the whole, or the head before or the tail after the first `nodes` nodes."""

    kind: Literal["whole", "head", "tail"]
    nodes: int = 0


@dataclass(frozen=True)
class Opened:
    """A part that is ready: `run` runs it once on its inputs; `size_bytes` is the size of its files."""

    run: Callable[[], object]
    close: Callable[[], None]
    size_bytes: int


class Bench:
    """Times parts of a model.

    `opener` opens a part and may raise `UpwellError`, which excludes it from the measurement (`failed` says why). As
    many parts are open at a time as `memory_bytes` of model files allow; if not all fit, they are measured in several
    turns. `clock` returns seconds; `tick` is called after every opening and every visit.
    """

    def __init__(
        self,
        opener: Callable[[MeasuredPart], Opened],
        clock: Callable[[], float],
        chance: random.Random,
        memory_bytes: int,
        tick: Callable[[], None],
    ) -> None:
        self.samples: dict[MeasuredPart, list[float]] = {}
        self.failed: dict[MeasuredPart, str] = {}
        self._opener = opener
        self._clock = clock
        self._chance = chance
        self._memory_bytes = memory_bytes
        self._tick = tick
        self._open: dict[MeasuredPart, Opened] = {}

    def measure(self, parts: Sequence[MeasuredPart], runs: int, until_s: float) -> None:
        """Add `runs` timings of each part to `samples`; fewer after `until_s`, but at least `FEWEST_RUNS`."""
        turns = max(1, min(_TURNS, runs // FEWEST_RUNS))
        for turn in range(turns if runs > 0 else 0):
            wanted = [part for part in parts if part not in self.failed]
            batches = 0
            for batch in self._batches(self._shuffled(wanted), until_s):
                batches += 1
                is_all = not turn and len(batch) == len([part for part in wanted if part not in self.failed])
                self._rounds(batch, runs if is_all else math.ceil(runs / turns), until_s)
            if batches <= 1:
                return

    def close(self) -> None:
        """Close all open parts."""
        while self._open:
            self._open.popitem()[1].close()

    def _batches(self, order: Sequence[MeasuredPart], until_s: float) -> Iterator[list[MeasuredPart]]:
        """Batches of parts that fit into memory together, each open while in use. No further batch after `until_s`
        merely for more runs."""
        batch: list[MeasuredPart] = []
        for part in order:
            if self._clock() >= until_s and self._count(part) >= FEWEST_RUNS:
                continue
            if part not in self._open and not self._is_opened(part):
                continue
            if batch and sum(opened.size_bytes for opened in self._open.values()) > self._memory_bytes:
                yield batch
                for other in [other for other in self._open if other != part]:
                    self._open.pop(other).close()
                batch = []
            batch.append(part)
        if batch:
            yield batch

    def _is_opened(self, part: MeasuredPart) -> bool:
        """Open the part and warm it up; returns whether that succeeded."""
        try:
            self._open[part] = self._opener(part)
            self._warm_up(self._open[part])
        except UpwellError as error:
            self.failed[part] = str(error)
            if part in self._open:
                self._open.pop(part).close()
        self._tick()
        return part in self._open

    def _warm_up(self, opened: Opened) -> None:
        """Run it until two runs in a row are no faster than before."""
        best_s, calm = math.inf, 0
        for _ in range(_MOST_WARMING):
            took_s = self._timed(opened)
            calm = calm + 1 if took_s > _FASTER * best_s else 0
            best_s = min(best_s, took_s)
            if calm >= _CALM_RUNS:
                return

    def _rounds(self, batch: Sequence[MeasuredPart], runs: int, until_s: float) -> None:
        taken = 0
        while taken < runs and (self._clock() < until_s or min(map(self._count, batch)) < FEWEST_RUNS):
            burst = min(BURST, runs - taken)
            for part in self._shuffled(batch):
                self._open[part].run()
                with without_collections():
                    timings = [self._timed(self._open[part]) for _ in range(burst)]
                self.samples.setdefault(part, []).extend(timings)
                self._tick()
            taken += burst

    def _count(self, part: MeasuredPart) -> int:
        return len(self.samples.get(part, ()))

    def _timed(self, opened: Opened) -> float:
        started_s = self._clock()
        opened.run()
        return self._clock() - started_s

    def _shuffled(self, parts: Sequence[MeasuredPart]) -> list[MeasuredPart]:
        return self._chance.sample(list(parts), len(parts))


def spread_of(samples: Sequence[float], stretch: float = 1.0) -> Spread:
    """Median, 10th and 90th percentile (linear between samples) of timings, each multiplied by `stretch`."""
    times = sorted(sample * stretch for sample in samples)
    tenths = statistics.quantiles(times, n=10, method="inclusive") if len(times) > 1 else times * 9
    return Spread(median_s=statistics.median(times), p10_s=tenths[0], p90_s=tenths[-1], runs=len(times))

"""What the halves give against what the whole gives."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from upwell.edge.runtimes.base import Runtime
from upwell.edge.runtimes.inputs import describe, shape_fits
from upwell.edge.runtimes.load import load_runtime
from upwell.edge.runtimes.options import RuntimeOptions
from upwell.shared.errors import ConfigError
from upwell.shared.tensors import Array, TensorSpec, numpy_dtype, oip_datatype
from upwell.tools.partition.recompose.matching import Unfit, fits, join, pair

_COUNTED_BYTES = 4
"""Integers of so many bytes are classes and indexes, which are equal or not; smaller ones are quantized numbers."""


@dataclass(frozen=True)
class OutputDifference:
    """Of one output over all runs. `error` is the largest of max |made − whole| / max |whole|.

    It is infinite where a shape or dtype differs, what counts or names differs at all, or one side is not finite.
    """

    name: str
    is_equal: bool
    error: float

    def holds(self, at_most: float) -> bool:
        """Whether it is bit-equal, or no further off than that."""
        return self.is_equal or self.error <= at_most


def difference(name: str, made: Sequence[Array], whole: Sequence[Array]) -> OutputDifference:
    """Compare one output, run by run."""
    pairs = list(zip(made, whole, strict=True))
    return OutputDifference(
        name,
        all(_is_equal(one, other) for one, other in pairs),
        max((_error(one, other) for one, other in pairs), default=0.0),
    )


def _is_equal(made: Array, whole: Array) -> bool:
    if made.dtype != whole.dtype or made.shape != whole.shape:
        return False
    return bool((made == whole).all()) if whole.dtype.hasobject else made.tobytes() == whole.tobytes()


def _error(made: Array, whole: Array) -> float:
    if _is_equal(made, whole):
        return 0.0
    if made.dtype != whole.dtype or made.shape != whole.shape or _is_counted(whole):
        return math.inf
    exact, found = whole.astype(np.float64), made.astype(np.float64)
    finite = np.isfinite(exact)
    if not np.array_equal(exact[~finite], found[~finite], equal_nan=True) or not np.isfinite(found[finite]).all():
        return math.inf
    off = float(np.abs(found[finite] - exact[finite]).max(initial=0.0))
    scale = float(np.abs(exact[finite]).max(initial=0.0))
    return off / scale if scale else (math.inf if off else 0.0)


def _is_counted(array: Array) -> bool:
    return (
        array.dtype.hasobject
        or array.dtype.kind == "b"
        or (array.dtype.kind in "iu" and array.dtype.itemsize >= _COUNTED_BYTES)
    )


_OPTIONS = RuntimeOptions(threads=1, instances=1)
_SMALL_BYTES = 2


@dataclass(frozen=True)
class Crossing:
    """A tensor from head to tail: its name there, the name of the head's output, and its size in one run."""

    name: str
    output: str
    datatype: str
    shape: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True)
class Verification:
    """What recomposing has shown. `outputs` is empty where there is no whole to compare with.

    Times are medians in seconds. `raw` are inputs of the tail that the caller gives, `early` outputs of the head that
    the tail does not take. `is_repeatable`: the same inputs gave the same bits again.
    """

    crossing: tuple[Crossing, ...]
    raw: tuple[str, ...]
    early: tuple[str, ...]
    by_order: bool
    is_repeatable: bool
    outputs: tuple[OutputDifference, ...]
    runs: int
    head_s: float
    tail_s: float
    whole_s: float | None

    def holds(self, at_most: float) -> bool:
        """Whether every output is within this relative error; without a whole, whether the halves repeat themselves."""
        return all(one.holds(at_most) for one in self.outputs) if self.outputs else self.is_repeatable


@dataclass(frozen=True)
class Inputs:
    """What to run on: arrays that were given by name, or `runs` times random ones."""

    given: Mapping[str, Array]
    runs: int
    seed: int

    def feeds(self, specs: Sequence[TensorSpec]) -> Iterator[dict[str, Array]]:
        """An array for each of `specs`, run by run: given ones row by row where the model takes one at a time.

        Raises `ConfigError` for given ones that do not fit.
        """
        if not self.given:
            random = np.random.default_rng(self.seed)
            for _ in range(self.runs):
                yield {spec.name: _made_up(spec, random) for spec in specs}
            return
        names = {spec.name for spec in specs}
        if names != set(self.given):
            wanted = ", ".join(map(describe, specs))
            raise ConfigError.at(None, f"it holds {', '.join(map(repr, self.given))}; expected {wanted}", "--inputs")
        arrays = {spec.name: self.given[spec.name] for spec in specs}
        if all(_fits(arrays[spec.name], spec, spec.shape) for spec in specs):
            yield arrays
            return
        rows = {len(array) if array.ndim else 0 for array in arrays.values()}
        for spec in specs:
            if len(rows) > 1 or spec.shape[:1] != (1,) or not _fits(arrays[spec.name], spec, (-1, *spec.shape[1:])):
                array = arrays[spec.name]
                raise ConfigError.at(
                    None, f"{spec.name!r} is {array.dtype} {list(array.shape)}; expected {describe(spec)}", "--inputs"
                )
        for row in range(rows.pop()):
            yield {name: np.ascontiguousarray(array[row : row + 1]) for name, array in arrays.items()}


def verify(head: Path, tail: Path, whole: Path | None, inputs: Inputs) -> Verification:
    """Run head and tail, and the whole where there is one. Raises `Unfit`, and what runtimes raise."""
    with contextlib.ExitStack() as stack:

        def opened(path: Path) -> Runtime:
            return stack.enter_context(contextlib.closing(load_runtime(path, _OPTIONS)))

        return _Bench(opened(head), opened(tail), None if whole is None else opened(whole)).verified(inputs)


@dataclass
class _Timed:
    """A runtime and what its runs took."""

    runtime: Runtime
    samples: list[float] = field(default_factory=list)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        started_s = time.perf_counter()
        outputs = self.runtime.run(inputs)
        self.samples.append(time.perf_counter() - started_s)
        return outputs

    @property
    def median_s(self) -> float:
        """In seconds; the first run is not warm."""
        return statistics.median(self.samples[1:] or self.samples)


class _Bench:
    """Head, tail and perhaps the whole, opened and joined."""

    def __init__(self, head: Runtime, tail: Runtime, whole: Runtime | None) -> None:
        self._head, self._tail = _Timed(head), _Timed(tail)
        self._whole = None if whole is None else _Timed(whole)
        given = head.inputs if whole is None else whole.inputs
        self._crossing: tuple[Crossing, ...] = ()
        self._joint = join(head.outputs, tail.inputs, given)
        if whole is None and not self._joint.sent:
            raise Unfit("the tail takes nothing that the head gives")
        self._inputs = given
        self._takes = _same(head.inputs, given, "the caller gives", "the head takes")
        if whole is not None:
            last = {spec.name for spec in tail.outputs}
            early = [spec for spec in head.outputs if spec.name not in last]
            self._compared = _same(whole.outputs, (*early, *tail.outputs), "the halves give", "the whole gives")

    def verified(self, inputs: Inputs) -> Verification:
        """Run on all inputs."""
        feeds = list(inputs.feeds(self._inputs))
        if not feeds:
            raise ConfigError.at(None, "there are no rows in it", "--inputs")
        first, again = (self._recomposed(feeds[0]) for _ in range(2))
        made = [self._recomposed(feed) for feed in feeds]
        return Verification(
            self._crossing,
            self._joint.raw,
            self._joint.early,
            self._joint.by_order,
            all(difference(name, [again[name]], [array]).is_equal for name, array in first.items()),
            self._differences(feeds, made),
            len(feeds),
            self._head.median_s,
            self._tail.median_s,
            None if self._whole is None else self._whole.median_s,
        )

    def _recomposed(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """All that both halves give; where names are the same, the tail's."""
        middle = self._head.run({name: feed[source] for name, source in self._takes.items()})
        sent = {name: middle[source] for name, source in self._joint.sent.items()}
        self._crossing = tuple(
            Crossing(name, self._joint.sent[name], oip_datatype(array.dtype), array.shape, array.nbytes)
            for name, array in sent.items()
        )
        return {**middle, **self._tail.run({**sent, **{name: feed[name] for name in self._joint.raw}})}

    def _differences(
        self, feeds: Sequence[Mapping[str, Array]], made: Sequence[Mapping[str, Array]]
    ) -> tuple[OutputDifference, ...]:
        if self._whole is None:
            return ()
        whole = [self._whole.run(feed) for feed in feeds]
        return tuple(
            difference(name, [one[ours] for one in made], [one[name] for one in whole])
            for name, ours in self._compared.items()
        )


def _same(wanted: Sequence[TensorSpec], there: Sequence[TensorSpec], gives: str, takes: str) -> dict[str, str]:
    """For each of `wanted` the name of the one of `there` that it is, by name or else in order. Raises `Unfit`."""
    known = {spec.name: spec for spec in there}
    named = {spec.name: spec.name for spec in wanted if spec.name in known and fits(known[spec.name], spec)}
    rest = [spec for spec in wanted if spec.name not in named]
    ordered = pair(rest, [spec for spec in there if spec.name not in named], gives, takes)
    return {spec.name: {**named, **ordered}[spec.name] for spec in wanted}


def _fits(array: Array, spec: TensorSpec, shape: Sequence[int]) -> bool:
    return array.dtype == numpy_dtype(spec.datatype) and shape_fits(shape, array.shape)


def _made_up(spec: TensorSpec, random: np.random.Generator) -> Array:
    """Floats from 0 to 1; 8 and 16 bits over their whole range; wider integers as 0 and 1. A leading -1 is one row."""
    dtype: np.dtype[Any] = numpy_dtype(spec.datatype)
    if dtype.hasobject or -1 in spec.shape[1:]:
        raise ConfigError.at(None, f"nothing can be made up for {describe(spec)}; --inputs gives arrays", "--inputs")
    shape = [abs(size) for size in spec.shape]
    if dtype.kind in "iu" and dtype.itemsize <= _SMALL_BYTES:
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if dtype.kind in "iub":
        return random.integers(0, 2, shape).astype(dtype)
    return random.random(shape).astype(dtype)

"""Runs head and tail of a model one after the other: how they fit together, and their outputs against the whole."""

from __future__ import annotations

import contextlib
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from upwell.cloud.engines.base import Engine, engine_type
from upwell.cloud.engines.model_settings import ModelSettings
from upwell.edge.runtimes.base import Runtime
from upwell.edge.runtimes.input_check import describe, shape_fits
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.edge.runtimes.runtime_options import RuntimeOptions
from upwell.shared.errors import ConfigError
from upwell.shared.signature.processor import sizes_fit
from upwell.shared.tensors import Array, TensorSpec, numpy_dtype, oip_datatype
from upwell.tools.partition.profile_inputs import synthetic_array
from upwell.tools.partition.tiers import SUFFIXES, as_safetensors


class Unfit(Exception):
    """Models that do not fit together, or do so in more than one way. The text is a sentence for the user."""


@dataclass(frozen=True)
class Joint:
    """How a head and a tail fit together.

    `sent` maps each input of the tail that the head makes to the head's output; `raw` are the other inputs of the
    tail, which take the caller's; `early` are outputs of the head that no input takes. `by_order`: names alone did
    not decide.
    """

    sent: Mapping[str, str]
    raw: tuple[str, ...]
    early: tuple[str, ...]
    by_order: bool = False


def join(head: Sequence[TensorSpec], tail: Sequence[TensorSpec], given: Sequence[TensorSpec]) -> Joint:
    """Match the outputs of a head with the inputs of a tail; `given` are the inputs that a caller has.

    Equal names are matched first. Any other input is one of `given`, if one of that name fits, and otherwise the next
    output that fits, in order. Raises `Unfit`, also if all inputs left may be either.
    """
    outputs = {spec.name: spec for spec in head}
    named = [spec for spec in tail if spec.name in outputs]
    for spec in named:
        if not fits(outputs[spec.name], spec):
            raise Unfit(f"the head gives {describe(outputs[spec.name])}, the tail takes {describe(spec)}")
    rest = [spec for spec in tail if spec not in named]
    unused = [spec for spec in head if spec.name not in {one.name for one in named}]
    raw = [spec for spec in rest if any(spec.name == one.name and fits(one, spec) for one in given)]
    if rest and not named and raw == rest and any(fits(one, spec) for spec in rest for one in unused):
        names = ", ".join(map(describe, rest))
        raise Unfit(
            f"{names} of the tail may be an input of the model or an output of the head; name it as one of them"
        )
    ordered = pair([spec for spec in rest if spec not in raw], unused, "the head gives", "the tail takes")
    sent = {spec.name: ordered.get(spec.name, spec.name) for spec in tail if spec not in raw}
    taken = set(sent.values())
    early = tuple(spec.name for spec in head if spec.name not in taken)
    return Joint(sent, tuple(spec.name for spec in raw), early, bool(ordered))


def pair(wanted: Sequence[TensorSpec], there: Sequence[TensorSpec], gives: str, takes: str) -> dict[str, str]:
    """Match each of `wanted` with one of `there`: in their order, by datatype and shape.

    `gives` and `takes` begin sentences about them. Raises `Unfit` unless there is exactly one way.
    """
    ways = [1] + [0] * len(wanted)  # ways[k]: of finding the first k of `wanted` in the part of `there` seen so far
    for one in there:
        for count in reversed(range(len(wanted))):
            ways[count + 1] += ways[count] if fits(one, wanted[count]) else 0
    if ways[-1] != 1:
        problem = (
            "they can be matched in more than one way; give them the same names" if ways[-1] else "they do not match"
        )
        given, taken = (", ".join(map(describe, side)) or "nothing else" for side in (there, wanted))
        raise Unfit(f"{gives} {given}; {takes} {taken}: {problem}")
    found: dict[str, str] = {}
    left = list(wanted)
    for one in there:
        if left and fits(one, left[0]):
            found[left.pop(0).name] = one.name
    return found


def fits(one: TensorSpec, other: TensorSpec) -> bool:
    """Whether the two can be one tensor."""
    return one.datatype == other.datatype and sizes_fit(one.shape, other.shape)


_COUNTED_BYTES = 4
"""Sizes of integers that are classes and indexes, compared for equality; smaller ones are quantized values (bytes)."""


@dataclass(frozen=True)
class OutputDifference:
    """The difference of one output over all runs. `error` is the largest max |made − whole| / max |whole|.

    It is infinite if a shape or dtype differs, if counts or names differ at all, or if one side is not finite.
    """

    name: str
    is_equal: bool
    error: float

    def holds(self, at_most: float) -> bool:
        """Whether it is bit-equal, or within this error."""
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
    """The result of recomposing. `outputs` is empty if there is no whole to compare with.

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
        """Whether every output is within this relative error; without a whole, whether the parts repeat their own
        outputs.
        """
        return all(one.holds(at_most) for one in self.outputs) if self.outputs else self.is_repeatable


@dataclass(frozen=True)
class Inputs:
    """The inputs to run on: arrays given by name, or `runs` sets of random ones."""

    given: Mapping[str, Array]
    runs: int
    seed: int

    def feeds(self, specs: Sequence[TensorSpec]) -> Iterator[dict[str, Array]]:
        """An array for each of `specs`, run by run: given ones row by row if the model takes one at a time.

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
            raise ConfigError.at(None, f"it has {', '.join(map(repr, self.given))}; expected {wanted}", "--inputs")
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
    """Run head and tail, and the whole if there is one. Raises `Unfit`, and whatever runtimes raise."""
    with contextlib.ExitStack() as stack:

        def opened(path: Path) -> Runtime | Engine:
            return stack.enter_context(contextlib.closing(_opened(path)))

        return _Bench(opened(head), opened(tail), None if whole is None else opened(whole)).verified(inputs)


def _opened(path: Path) -> Runtime | Engine:
    """A model as the device runs it; a program of torch.export, or its tail, as the service runs it."""
    if path.suffix not in SUFFIXES:
        return load_runtime(path, _OPTIONS)
    with tempfile.TemporaryDirectory(prefix="upwell-") as folder:
        file = as_safetensors(path, Path(folder))
        return engine_type("torch").load(path.stem, file, ModelSettings(engine="torch"))


@dataclass
class _Timed:
    """A runtime and the times of its runs."""

    runtime: Runtime | Engine
    samples: list[float] = field(default_factory=list)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        started_s = time.perf_counter()
        outputs = self.runtime.run(inputs)
        self.samples.append(time.perf_counter() - started_s)
        return outputs

    @property
    def median_s(self) -> float:
        """The median in seconds, without the first run, which is not warm."""
        return statistics.median(self.samples[1:] or self.samples)


class _Bench:
    """Head, tail and optionally the whole, opened and joined."""

    def __init__(self, head: Runtime | Engine, tail: Runtime | Engine, whole: Runtime | Engine | None) -> None:
        self._head, self._tail = _Timed(head), _Timed(tail)
        self._whole = None if whole is None else _Timed(whole)
        given = head.inputs if whole is None else whole.inputs
        self._crossing: tuple[Crossing, ...] = ()
        self._joint = join(head.outputs, tail.inputs, given)
        if whole is None and not self._joint.sent:
            raise Unfit("the tail takes none of the head's outputs")
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
            raise ConfigError.at(None, "it has no rows", "--inputs")
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
        """All outputs of both parts; where names are the same, the tail's."""
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
    """For each of `wanted` the name of its counterpart in `there`, by name or else in order. Raises `Unfit`."""
    known = {spec.name: spec for spec in there}
    named = {spec.name: spec.name for spec in wanted if spec.name in known and fits(known[spec.name], spec)}
    rest = [spec for spec in wanted if spec.name not in named]
    ordered = pair(rest, [spec for spec in there if spec.name not in named], gives, takes)
    return {spec.name: {**named, **ordered}[spec.name] for spec in wanted}


def _fits(array: Array, spec: TensorSpec, shape: Sequence[int]) -> bool:
    return array.dtype == numpy_dtype(spec.datatype) and shape_fits(shape, array.shape)


def _made_up(spec: TensorSpec, random: np.random.Generator) -> Array:
    """Random numbers for an input; a leading -1 is one row."""
    dtype: np.dtype[Any] = numpy_dtype(spec.datatype)
    if dtype.hasobject or -1 in spec.shape[1:]:
        raise ConfigError.at(
            None, f"no values can be generated for {describe(spec)}; pass arrays with --inputs", "--inputs"
        )
    return synthetic_array(list(map(abs, spec.shape)), dtype, random)

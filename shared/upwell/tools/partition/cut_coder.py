"""Cutting with a codec: the range of each cut tensor on samples, and the error of the codec on them."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from upwell.shared.errors import ConfigError, InvalidRequest
from upwell.shared.partition.part_bench import Runner, TierOptions, open_tier
from upwell.shared.partition.split.model_halves import Halves, ModelHalf
from upwell.shared.partition.split.split_writer import UnsplitModel
from upwell.shared.signature.bound_steps import chunk_of
from upwell.shared.signature.processor import Processor
from upwell.shared.tensors import Array

Codec = Callable[[Halves, Mapping[str, tuple[float, float]]], Halves]


class Coder:
    """Adds a codec to the parts of one model. `samples` are arrays by name, rows first; empty for none.

    Their names are those of the model's inputs, or of the signature in its `model.yaml`. Use it as a context manager:
    the model stays open in the device's runtime.
    """

    def __init__(self, whole: UnsplitModel, codec: Codec, samples: Mapping[str, Array]) -> None:
        self._codec = codec
        self._stack = contextlib.ExitStack()
        self._feeds: list[Mapping[str, Array]] = []
        self._answers: list[Mapping[str, Array]] = []
        if not samples:
            return
        self._tier, _ = open_tier("edge", whole.format, TierOptions())
        runner = self._stack.enter_context(contextlib.closing(self._tier.open(whole.file.path)))
        self._feeds = list(_feeds(whole, runner, samples))
        self._answers = [runner.run(feed) for feed in self._feeds]

    def __enter__(self) -> Coder:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def coded(self, halves: Halves) -> tuple[Halves, float | None]:
        """The parts with the codec, and their largest error on the samples, None without any: max |d| / max |whole|.

        Raises `ConfigError` if the codec does not fit.
        """
        if not self._feeds:
            return self._codec(halves, {}), None
        with self._opened(halves.head) as head:
            seen = [_of(head, feed) for feed in self._feeds]
        ranges = {
            name: (min(float(one[name].min()) for one in seen), max(float(one[name].max()) for one in seen))
            for name in halves.cut
        }
        made = self._codec(halves, ranges)
        with self._opened(made.head) as head, self._opened(made.tail) as tail:
            return made, max(
                self._error(whole, _recomposed(head, tail, feed))
                for feed, whole in zip(self._feeds, self._answers, strict=True)
            )

    @staticmethod
    def _error(whole: Mapping[str, Array], made: Mapping[str, Array]) -> float:
        errors = [0.0]
        for name, expected in whole.items():
            if expected.dtype.kind in "fiu" and expected.size:
                exact = expected.astype(np.float64)
                scale = float(np.abs(exact).max()) or 1.0
                errors.append(float(np.abs(made[name].astype(np.float64) - exact).max()) / scale)
        return max(errors)

    @contextlib.contextmanager
    def _opened(self, half: ModelHalf) -> Iterator[Runner]:
        with (
            tempfile.TemporaryDirectory(prefix="upwell-split-") as folder,
            contextlib.closing(self._tier.open(half.write(Path(folder)))) as runner,
        ):
            yield runner


def _of(runner: Runner, values: Mapping[str, Array]) -> dict[str, Array]:
    return runner.run({spec.name: values[spec.name] for spec in runner.inputs})


def _recomposed(head: Runner, tail: Runner, feed: Mapping[str, Array]) -> dict[str, Array]:
    middle = _of(head, feed)
    return {**middle, **_of(tail, {**feed, **middle})}


def _feeds(whole: UnsplitModel, runner: Runner, samples: Mapping[str, Array]) -> Iterator[Mapping[str, Array]]:
    """The samples in batches as the model takes them; missing rows repeat the last one."""
    described = whole.description if set(samples) != {spec.name for spec in runner.inputs} else None
    processor = Processor(described, runner.inputs, runner.outputs, whole.format)
    signature = processor.signature
    if set(samples) != {one.name for one in signature.inputs}:
        wanted = ", ".join(repr(one.name) for one in signature.inputs)
        raise ConfigError.at(None, f"it has {', '.join(map(repr, samples))}; the model takes {wanted}", "--data")
    rows = min(len(array) if array.ndim else 0 for array in samples.values()) if signature.has_rows else 1
    step = max(chunk_of(runner.inputs), 1) if signature.has_rows else 1
    for start in range(0, rows, step):
        chosen = [min(row, rows - 1) for row in range(start, start + step)]
        try:
            yield processor.pre(signature.select_rows(samples, chosen)).tensors
        except InvalidRequest as error:
            raise ConfigError.at(None, f"row {start}: {error}", "--data") from None

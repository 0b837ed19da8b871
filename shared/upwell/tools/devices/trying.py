"""Trying one accelerator on the sample models, by the way that the agent loads them."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import BinaryIO

import numpy as np

from upwell.edge.runtimes.base import Runtime
from upwell.edge.runtimes.load import load_runtime
from upwell.edge.runtimes.options import AcceleratorOptions, RuntimeOptions
from upwell.edge.runtimes.placement import AcceleratorNotUsable
from upwell.shared.errors import ConfigError, UpwellError
from upwell.tools.devices.rows import DeviceCheck
from upwell.tools.devices.samples import SampleModel

_CAUSE = re.compile(r"(?i)\b(can ?not|could not|unable to|failed to|no such)\b")
_SEVERE = re.compile(r"(?i)\b(error|fail(ed|ure)?)\b")
_FOLDERS = re.compile(r"(?<![\w/])/[^\s:]*/")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NOISE = re.compile(r"\[[^\]\s]*\.(cc|h):\d+\]|\bERROR: ")
_MAX_LOGGED = 160


def try_samples(
    samples: Sequence[SampleModel], options: RuntimeOptions, accelerator: AcceleratorOptions | None
) -> Sequence[DeviceCheck]:
    """Load and run each sample on `accelerator`, or on the CPU for None."""
    return [_try(sample, options, accelerator) for sample in samples]


def answers_of(sample: SampleModel, runtime: Runtime) -> bool:
    """Whether the runtime answers the sample's inputs rightly, sent row by row."""
    (taken,), (given,) = runtime.inputs, runtime.outputs
    answers = [runtime.run({taken.name: row[None]})[given.name] for row in sample.inputs]
    return sample.agrees(np.concatenate(answers))


def _try(sample: SampleModel, options: RuntimeOptions, accelerator: AcceleratorOptions | None) -> DeviceCheck:
    with logged() as log:
        try:
            runtime = load_runtime(sample.path, options, accelerator)
        except (AcceleratorNotUsable, ConfigError) as error:
            said = _reason_in(log)
            return DeviceCheck(sample.name, reason=f"{_message(error)} (log: {said})" if said else _message(error))
        try:
            agrees = answers_of(sample, runtime)
        except UpwellError as error:
            return DeviceCheck(sample.name, reason=str(error))
        finally:
            runtime.close()
        placement = runtime.placement
    there = placement.nodes if accelerator is None else placement.nodes_on_accelerator
    return DeviceCheck(
        sample.name, placement.nodes, there, agrees, placement.reason if agrees else "its answers are wrong"
    )


def _message(error: Exception) -> str:
    """The text without the sample's own path, which says nothing to a reader."""
    problems = [problem.message for problem in error.problems] if isinstance(error, ConfigError) else [str(error)]
    return _plain("; ".join(problems))


@contextmanager
def logged() -> Iterator[BinaryIO]:
    """What native libraries write to standard error meanwhile, in a file: often their only word about a failure."""
    with tempfile.TemporaryFile() as log:
        sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            yield log
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _reason_in(log: BinaryIO) -> str:
    """The last line that names a cause, or else sounds like a failure; its end if it is long."""
    log.seek(0)
    text = _COLOURS.sub("", log.read().decode(errors="replace"))
    lines = [line for line in text.splitlines() if not line.startswith("INFO")]
    telling = [line for line in lines if _CAUSE.search(line)] or [line for line in lines if _SEVERE.search(line)]
    words = _FOLDERS.sub("", _plain(telling[-1])).split() if telling else []
    tails = accumulate(reversed(words), lambda tail, word: f"{word} {tail}")
    return max((tail for tail in tails if len(tail) <= _MAX_LOGGED), key=len, default="").strip(": ")


def _plain(text: str) -> str:
    return " ".join(_NOISE.sub("", text).split())

"""`workers: auto`: how many processes serve, and with how many threads a run, by a short trial of each model.

The trial is a process of its own with a time limit, so a model that takes long to load, or ends the process, costs a
moment and no memory of the service.
"""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from pydantic import TypeAdapter, ValidationError

from upwell.cloud.config import CloudConfig, OnnxModel, cores
from upwell.cloud.engines.base import ModelSettings
from upwell.cloud.engines.checks import zero_batch
from upwell.cloud.engines.loading import engine_type
from upwell.cloud.repository.repository import ModelFolder
from upwell.cloud.service.loading import find_models
from upwell.shared.config.security import parse_address
from upwell.shared.errors import UpwellError

LIMIT_S = 3.0
"""What the trial may add to a start. Models that it did not come to are served as if it had not been."""

_MODEL_S, _LONG_RUN_S = 0.4, 5e-3
_LEAST_RUNS, _MOST_RUNS = 3, 50
_GAIN, _PROCESS_GAIN = 1.1, 1.05
"""Another choice than the plain one has to be so much better by the estimate: more threads a run, more processes. What
processes gain was measured to be about twice the estimate where it is small: 1.25 for 1.14, and nothing for 1.02."""

_CALL_S, _BYTE_S = 280e-6, 0.93e-9
"""CPU of the front end for a request, and for each of its bytes: measured on x86-64 at 1 kB and at 602 kB."""

_log = logging.getLogger("upwell.cloud")


@dataclass(frozen=True)
class ModelTrial:
    """What running one row of a model took. `size_bytes` are those of its inputs; `threads_s` is the same with as
    many threads as there are cores, None where that was not tried. Both are the quickest of several runs: whatever
    else the machine does only adds to a run."""

    model: str
    version: str
    size_bytes: int
    one_thread_s: float
    threads_s: float | None = None

    @property
    def front_end_s(self) -> float:
        """What the front end takes for such a request, which in one process is one request's at a time."""
        return _CALL_S + self.size_bytes * _BYTE_S

    def rate(self, workers: int, cores_there: int) -> float:
        """Requests a second that so many processes can answer, each with its share of the cores.

        A process of n cores is a closed network of n requests, each in turn at the front end, which is one request's at
        a time, and at its run, which is its own. Mean value analysis (Reiser and Lavenberg, 1980): with R(n) the time
        at the front end, F what it takes alone and Q(n) the requests there, R(n) = F (1 + Q(n - 1)),
        X(n) = n / (R(n) + run), Q(n) = X(n) R(n), Q(0) = 0.
        """
        rate = at_front_end = 0.0
        for n in range(1, math.ceil(cores_there / workers) + 1):
            waited_s = self.front_end_s * (1.0 + at_front_end)
            rate = n / (waited_s + self.one_thread_s)
            at_front_end = rate * waited_s
        return min(workers * rate, cores_there / (self.front_end_s + self.one_thread_s))

    def is_enough(self, workers: int, cores_there: int) -> bool:
        """Whether a process for each core would not answer noticeably more than so many."""
        return _PROCESS_GAIN * self.rate(workers, cores_there) >= self.rate(cores_there, cores_there)


@dataclass(frozen=True)
class ProcessChoice:
    """How many processes, and the models whose runs take more than one thread."""

    workers: int
    threads: dict[str, int]


def choose(trials: Sequence[ModelTrial], cores_there: int, *, may_share: bool) -> ProcessChoice:
    """The choice for the models tried: the fewest processes with which each model answers nearly as much as with one
    for each core, if `may_share` says that several may listen; one run on all cores where that beats a run on each.
    """
    counts = range(1, cores_there + 1 if may_share else 2)
    needed = [next(n for n in counts if n == counts[-1] or one.is_enough(n, cores_there)) for one in trials]
    workers = max(needed, default=1)
    threads = {
        one.model: cores_there
        for one in trials
        if workers == 1 and one.threads_s is not None and one.one_thread_s > _GAIN * cores_there * one.threads_s
    }
    return ProcessChoice(workers, threads)


def resolved(config: CloudConfig) -> CloudConfig:
    """The same configuration with a number for `workers: auto`, told in the log; any other as it is."""
    if config.serve.workers != "auto":
        return config
    reason = _why_one(config)
    trials = [] if reason else _tried(config)
    choice = choose(trials, cores(), may_share=not reason)
    for one in trials:
        _log.info(
            "trial: model %s version %s, %d bytes a request: a run takes %.2f ms on one thread; %.0f requests/s "
            "expected of one process, %.0f of %d",
            one.model, one.version, one.size_bytes, 1e3 * one.one_thread_s, one.rate(1, cores()),
            one.rate(cores(), cores()), cores(),
        )  # fmt: skip
    _log.info("workers: auto is %d%s", choice.workers, f" ({reason})" if reason else "")
    models = dict(config.models)
    for name, threads in choice.threads.items():
        own = models.get(name) or OnnxModel(engine="onnx")
        if own.threads is None and "threads" not in config.defaults.model_fields_set:
            models[name] = own.model_copy(update={"threads": threads})
            _log.info("model %s: threads is %d, since a run on each core takes longer", name, threads)
    serve = config.serve.model_copy(update={"workers": choice.workers})
    return config.model_copy(update={"serve": serve, "models": models})


def _why_one(config: CloudConfig) -> str:
    """Why several processes cannot, or should not, serve; empty where they may."""
    if sys.platform != "linux":
        return "only Linux lets several processes share a port"
    if cores() == 1:
        return "there is one core"
    if any(parse_address(text).socket_path for text in (*config.serve.listen, *config.serve.listen_http)):
        return "a unix socket has one process"
    names = {name for name, model in config.models.items() if not _is_plain(config.settings(name))}
    return "an accelerator is best served by one process" if names or not _is_plain(config.settings("")) else ""


def _is_plain(settings: ModelSettings) -> bool:
    return settings.device == "cpu" and not settings.providers


def _tried(config: CloudConfig) -> list[ModelTrial]:
    """What a process of its own found within `LIMIT_S`."""
    command = [sys.executable, "-m", __name__]
    given = json.dumps(config.as_written()).encode()
    try:
        done = subprocess.run(command, input=given, capture_output=True, timeout=LIMIT_S, check=False)  # noqa: S603  us
        out = done.stdout
        if done.returncode:
            _log.warning("the trial of `workers: auto` ended with status %d", done.returncode)
    except subprocess.TimeoutExpired as late:
        out = late.stdout or b""
        _log.info("the trial of `workers: auto` ended after %.0f s, before all models were tried", LIMIT_S)
    found: list[ModelTrial] = []
    reader = TypeAdapter(ModelTrial)
    for line in out.splitlines(keepends=True):
        try:
            found.append(reader.validate_json(line))
        except ValidationError:  # cut off by the limit
            continue
    return found


def _trials(config: CloudConfig) -> Iterator[ModelTrial]:
    """Each model's trial, where one can be made; what is wrong with a model is told by the start that follows."""
    for folder in find_models(config):
        settings = config.settings(folder.name)
        if settings.engine != "onnx" or not _is_plain(settings):
            continue
        try:
            yield from _trial_of(folder, settings)
        except (UpwellError, OSError):
            continue


def _trial_of(folder: ModelFolder, settings: ModelSettings) -> Iterator[ModelTrial]:
    first = _timed(folder, replace(settings, threads=1))
    if first is None:
        return
    one = ModelTrial(folder.name, str(folder.version), *first)
    yield one
    # Threads of one run only help where it is long: what they cost to wake is a few microseconds.
    if one.one_thread_s > _LONG_RUN_S and (second := _timed(folder, replace(settings, threads=cores()))):
        yield replace(one, threads_s=second[1])


def _timed(folder: ModelFolder, settings: ModelSettings) -> tuple[int, float] | None:
    """The bytes of one row, and the seconds that a run of it takes; None where only real data would do."""
    kind = engine_type(settings.engine)
    engine = kind.load(folder.name, folder.file(kind.file_name), settings)
    try:
        batch = zero_batch(engine.inputs, 1)
        if batch is None:
            return None
        engine.run(batch)
        times: list[float] = []
        end_s = time.monotonic() + _MODEL_S
        while len(times) < _LEAST_RUNS or (len(times) < _MOST_RUNS and time.monotonic() < end_s):
            started_s = time.perf_counter()
            engine.run(batch)
            times.append(time.perf_counter() - started_s)
        return sum(array.nbytes for array in batch.values()), min(times)
    finally:
        engine.close()


def main() -> None:
    """Try the models of the configuration on standard input, and write each trial as a line of JSON."""
    config = CloudConfig.model_validate(json.load(sys.stdin))
    for one in _trials(config):
        print(json.dumps(asdict(one)), flush=True)


if __name__ == "__main__":
    main()

"""`workers: auto`: chooses the number of processes, and of threads per run, by a short trial of each model.

The trial runs in a process of its own with a time limit. So a model that loads slowly or crashes the process costs a
moment, and none of the service's memory.
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

from upwell.cloud.config import CloudConfig, OnnxModel
from upwell.cloud.engines.base import engine_type
from upwell.cloud.engines.batch_checks_and_buckets import zero_batch
from upwell.cloud.engines.model_settings import ModelSettings
from upwell.cloud.repository.model_folders import ModelFolder
from upwell.cloud.service.model_loader import find_models
from upwell.shared.config.addresses import parse_address
from upwell.shared.errors import UpwellError
from upwell.shared.platform.cpu_cores import usable_cores

LIMIT_S = 3.0
"""The longest that the trial delays a start. Models that it did not reach are served with the defaults."""

_MODEL_S, _LONG_RUN_S = 0.4, 5e-3
_LEAST_RUNS, _MOST_RUNS = 3, 50
_GAIN, _PROCESS_GAIN = 1.1, 1.05
"""How much better than the plain choice the estimate must be for more threads per run, and for more processes. The
measured gain of more processes was about twice the estimate where that is small: 1.25 for 1.14, and none for 1.02."""

_CALL_S, _BYTE_S = 280e-6, 0.93e-9
"""CPU time of the front end per request, and per byte of it, measured on x86-64 at 1 kB and at 602 kB."""

_log = logging.getLogger("upwell.cloud")


@dataclass(frozen=True)
class ModelTrial:
    """The times of one model for one row. `size_bytes` are those of its inputs; `threads_s` is the time with as many
    threads as cores, None if not tried. Both times are the shortest of several runs, since other load only adds to
    them."""

    model: str
    version: str
    size_bytes: int
    one_thread_s: float
    threads_s: float | None = None

    @property
    def front_end_s(self) -> float:
        """Time of the front end for such a request; one process handles one request at a time there."""
        return _CALL_S + self.size_bytes * _BYTE_S

    def rate(self, workers: int, cores_there: int) -> float:
        """Requests per second that `workers` processes can answer, each with its share of the cores.

        A process of n cores is modelled as a closed network of n requests, each in turn at the front end, which serves
        one at a time, and in a run of its own. Mean value analysis (Reiser and Lavenberg, 1980): with R(n) the time at
        the front end, F its service time and Q(n) the requests there, R(n) = F (1 + Q(n - 1)), X(n) = n / (R(n) + run),
        Q(n) = X(n) R(n), Q(0) = 0.
        """
        rate = at_front_end = 0.0
        for n in range(1, math.ceil(cores_there / workers) + 1):
            waited_s = self.front_end_s * (1.0 + at_front_end)
            rate = n / (waited_s + self.one_thread_s)
            at_front_end = rate * waited_s
        return min(workers * rate, cores_there / (self.front_end_s + self.one_thread_s))

    def is_enough(self, workers: int, cores_there: int) -> bool:
        """Whether one process per core would not answer noticeably more than `workers` processes."""
        return _PROCESS_GAIN * self.rate(workers, cores_there) >= self.rate(cores_there, cores_there)


@dataclass(frozen=True)
class ProcessChoice:
    """The number of processes, and the threads of the models whose runs take more than one."""

    workers: int
    threads: dict[str, int]


def choose(trials: Sequence[ModelTrial], cores_there: int, *, may_share: bool) -> ProcessChoice:
    """The choice for the models tried: the fewest processes with which each model answers nearly as many requests as
    with one per core, if `may_share` says that several may listen; one run on all cores where that beats one run on
    each.
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
    """The configuration with `workers: auto` replaced by a number, which is logged; any other is returned unchanged."""
    if config.serve.workers != "auto":
        return config
    reason = _why_one(config)
    trials = [] if reason else _tried(config)
    choice = choose(trials, usable_cores(), may_share=not reason)
    for one in trials:
        _log.info(
            "trial: model %s version %s, %d bytes a request: a run takes %.2f ms on one thread; %.0f requests/s "
            "expected of one process, %.0f of %d",
            one.model, one.version, one.size_bytes, 1e3 * one.one_thread_s, one.rate(1, usable_cores()),
            one.rate(usable_cores(), usable_cores()), usable_cores(),
        )  # fmt: skip
    _log.info("workers: auto chose %d%s", choice.workers, f" ({reason})" if reason else "")
    models = dict(config.models)
    for name, threads in choice.threads.items():
        own = models.get(name) or OnnxModel(engine="onnx")
        if own.threads is None and "threads" not in config.defaults.model_fields_set:
            models[name] = own.model_copy(update={"threads": threads})
            _log.info("model %s: threads set to %d, which is faster than a run on each core", name, threads)
    serve = config.serve.model_copy(update={"workers": choice.workers})
    return config.model_copy(update={"serve": serve, "models": models})


def _why_one(config: CloudConfig) -> str:
    """Why several processes cannot, or should not, serve; "" if they may."""
    if sys.platform != "linux":
        return "only Linux lets several processes share a port"
    if usable_cores() == 1:
        return "there is only one core"
    if any(parse_address(text).socket_path for text in (*config.serve.listen, *config.serve.listen_http)):
        return "processes cannot share a unix socket"
    names = {name for name, model in config.models.items() if not config.settings(name).is_on_cpu}
    return "an accelerator is best served by one process" if names or not config.settings("").is_on_cpu else ""


def _tried(config: CloudConfig) -> list[ModelTrial]:
    """The results of the trial process within `LIMIT_S`."""
    # A plain `-m` would look for modules in the current folder first, as for a worker (`WorkerHandle`).
    program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main()"
    command = [sys.executable, "-c", program]
    given = json.dumps(config.as_written()).encode()
    try:
        done = subprocess.run(command, input=given, capture_output=True, timeout=LIMIT_S, check=False)  # noqa: S603  us
        out = done.stdout
        if done.returncode:
            _log.warning("the trial of `workers: auto` ended with status %d", done.returncode)
    except subprocess.TimeoutExpired as late:
        out = late.stdout or b""
        _log.info("the trial of `workers: auto` was cut off after %.0f s, before all models were tried", LIMIT_S)
    found: list[ModelTrial] = []
    reader = TypeAdapter(ModelTrial)
    for line in out.splitlines(keepends=True):
        try:
            found.append(reader.validate_json(line))
        except ValidationError:  # cut off by the time limit
            continue
    return found


def _trials(config: CloudConfig) -> Iterator[ModelTrial]:
    """The trial of each model that can be tried; the start that follows reports what is wrong with a model."""
    for folder in find_models(config):
        settings = config.settings(folder.name)
        if settings.engine != "onnx" or not settings.is_on_cpu:
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
    # Threads within a run only help where it is long: waking them takes a few microseconds.
    if one.one_thread_s > _LONG_RUN_S and (second := _timed(folder, replace(settings, threads=usable_cores()))):
        yield replace(one, threads_s=second[1])


def _timed(folder: ModelFolder, settings: ModelSettings) -> tuple[int, float] | None:
    """The bytes of one row, and the seconds that its run takes; None if the model needs real data."""
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
    """Try the models of the configuration on standard input, and write each result as a line of JSON."""
    config = CloudConfig.model_validate(json.load(sys.stdin))
    for one in _trials(config):
        print(json.dumps(asdict(one)), flush=True)

"""The life of a serving process: load, serve, drain. For several processes see `supervisor.py`."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NoReturn

from rich.console import Console
from rich.progress import track

from upwell.cloud.batching.model_queue import Run
from upwell.cloud.config import CloudConfig
from upwell.cloud.observe.metrics import serve_metrics
from upwell.cloud.observe.telemetry import Telemetry
from upwell.cloud.repository.model_folders import ModelFolder
from upwell.cloud.service.cloud_service import CloudIntrospection, CloudService
from upwell.cloud.service.model_loader import (
    FATAL,
    UNLOADED,
    BrokenModel,
    LoadAttempt,
    OnRun,
    calls_at_once,
    check_any,
    find_models,
    loader,
)
from upwell.cloud.service.model_repository import ModelRepository, RepositoryWatch
from upwell.cloud.workers.health_and_reflection import MAX_STREAMS, Health, Reflection
from upwell.cloud.workers.startup_banner import Listening, ModelLine, announce
from upwell.cloud.workers.supervisor import supervise
from upwell.cloud.workers.worker_count import resolved
from upwell.shared.config.addresses import parse_address
from upwell.shared.config.security import check_exposure, warn_of_root
from upwell.shared.oip.auth.request_quotas import limited
from upwell.shared.oip.grpc.fastpath.switch import switch_on
from upwell.shared.oip.grpc.server.server import Connections, RunningServer, check_free, start_server
from upwell.shared.oip.grpc.server.triton_extensions import (
    AS_CONFIGURED,
    REPOSITORY_EXTENSION,
    LoadSettings,
    Repository,
    RepositoryActions,
    add_introspection_methods,
    add_repository_methods,
)
from upwell.shared.oip.http.server.extension_routes import Extensions
from upwell.shared.oip.http.server.server import RunningHttpServer, start_http_server
from upwell.shared.oip.introspection import EXTENSIONS as INTROSPECTION
from upwell.shared.oip.introspection import Introspection
from upwell.shared.oip.model_statistics import StatisticsCounter
from upwell.shared.platform.background_thread import BackgroundThread
from upwell.shared.platform.memory import heap_trimmer, resident_bytes
from upwell.shared.platform.process import StopSignals, Systemd
from upwell.shared.telemetry.logs import set_up_logs

_QUICK_CALLS = 16
"""Calls beside inference: health, metadata, loading, and requests that are refused at once."""
AT_WORK = 1
"""Calls that use the interpreter at once: a second one only contends for its lock."""
_EXPERIMENTS = "GRPC_EXPERIMENTS", "-event_engine_listener"
"""gRPC's threads that wait for its events then read the sockets themselves, rather than be woken by another one: a
quarter of a small request's time. gRPC reads it when the first server is made; what the environment has goes before."""
_CLOSING_S = 1.0
_HANDING_OVER_S = 0.1
"""For the last answers, between the service and the servers that send them."""
_STDERR = 2

BROKEN_OFF = "error: some requests took longer than the drain time and were cut off"


@dataclass(frozen=True)
class Restored:
    """The changes made by request before this process began: the models `unloaded`, and the versions of the others.

    `versions` is None if there were none: the folders then decide. `settings` are those of earlier loads by request.
    """

    unloaded: frozenset[str] = frozenset()
    versions: Mapping[str, Sequence[str]] | None = None
    settings: Mapping[str, LoadSettings] = field(default_factory=dict)
    fatal: frozenset[tuple[str, str]] = frozenset()
    """Models and versions whose loads or runs have ended processes."""


FRESH = Restored()
"""No changes."""


def run(config: CloudConfig) -> None:
    """Serve until one of `stop_signals`, then answer what was accepted and return.

    Nothing listens before every model is loaded and warmed up in every worker. Raises `ConfigError`, and `ModelFailed`
    if no model can be served; a broken model beside others is only not ready.
    """
    console = set_up_logs(config.serve.log)
    os.environ.setdefault(*_EXPERIMENTS)
    check_exposure(
        [*config.serve.listen, *config.serve.listen_http], config.serve.security
    )  # before loading, which may take minutes
    warn_of_root([*config.serve.listen, *config.serve.listen_http])
    config = resolved(config)
    if config.serve.processes > 1:
        supervise(config, console)
    else:
        _run_alone(config, console)


def _run_alone(config: CloudConfig, console: Console) -> None:
    faulthandler.enable(_STDERR)  # a crash then names the model (`named_calls`)
    for address in (*config.serve.listen, *config.serve.listen_http):
        check_free(parse_address(address))  # again before listening, since loading may take minutes
    metrics = config.serve.metrics
    if metrics:
        check_free(parse_address(metrics), "serve.metrics")
    if config.serve.fast_path == "auto":
        switch_on()
    process = ServingProcess(config, console, on_device_lost=partial(os.kill, os.getpid(), signal.SIGTERM))
    stop = StopSignals()
    try:
        page = serve_metrics(metrics, process.telemetry.snapshots) if metrics else ""
        announce(console, process.models, replace(process.start(), metrics=page))
        systemd = Systemd.of_environment()
        systemd.ready()
        systemd.ping_until(stop, process.service.ready)
    finally:
        stop.restore_default()
    console.print("draining", markup=False)
    systemd.stopping()
    finish(process, console)


def finish(process: ServingProcess, console: Console, drained: Callable[[], None] = lambda: None) -> None:
    """Drain and call `drained`; then end at once if threads still run or a device is lost, else return.

    The status is 1 if requests were cut off, and for a lost device, so that whoever started the process does so again.
    """
    in_time = process.drain()
    drained()
    if not in_time:
        console.print(BROKEN_OFF, markup=False)
    if not in_time or process.repository.is_loading or process.service.device_is_lost:
        end(not in_time or process.service.device_is_lost)


def end(code: int) -> NoReturn:
    """End without waiting for threads, as a plain exit would, however long a request or a load takes."""
    logging.shutdown()
    os._exit(code)


class ServingProcess:
    """One process's part of the service: its models, their repository, and the servers in front.

    The constructor loads the models, `start` listens, `drain` ends. `console` shows the progress; `trying` surrounds
    each load of a version, and `on_device_lost` must have the process drained. Raises as `run` does.
    """

    def __init__(
        self,
        config: CloudConfig,
        console: Console | None = None,
        restored: Restored = FRESH,
        trying: Callable[[ModelFolder], AbstractContextManager[object]] = nullcontext,
        on_device_lost: Callable[[], object] = lambda: None,
    ) -> None:
        self._config = config
        folders = _to_serve(config, restored)
        self.telemetry = Telemetry(config.serve, lambda: self.service.versions_by_model)
        counter = StatisticsCounter()
        on_run = _told_to(counter, self.telemetry.on_run)
        wanted = [one for one in folders if one.name not in restored.unloaded]
        asked = restored.settings
        load = loader(config, on_run, trying)
        attempts = [
            LoadAttempt(one.files(), BrokenModel(*one.key, FATAL))
            if one.key in restored.fatal
            else load(one, asked.get(one.name, AS_CONFIGURED))
            for one in _shown(wanted, console)
        ]
        if not restored.unloaded:
            check_any(attempt.result for attempt in attempts)
        unloaded = [one for one in folders if one.name in restored.unloaded]
        results = [one.result for one in attempts]
        results += [BrokenModel(one.name, str(one.version), UNLOADED) for one in unloaded]
        self.models = [ModelLine.of(result) for result in results]
        self._calls = calls_at_once(results, config) + _QUICK_CALLS
        extensions = [*INTROSPECTION, *([REPOSITORY_EXTENSION] if config.serve.repository.control else [])]
        self.service = CloudService(
            results, extra_extensions=extensions, statistics=counter, on_device_lost=on_device_lost
        )
        self.introspection = CloudIntrospection(self.service, counter, config.serve.traces)
        if restored.versions is not None:  # beside other workers, where a broken version replaced none that was ready
            for name, model_versions in self.service.versions_by_model.items():
                self.service.put(name, model_versions.runnable())
        self._health = Health({name: self.service.ready(name) for name in self.service.versions_by_model})
        self.repository = ModelRepository(
            config, self.service, attempts, self._health.show, restored.unloaded, load, asked
        )
        every_s = config.serve.repository.watch
        self._watch = RepositoryWatch(self.repository, every_s) if every_s else None
        self._memory_trimmer = MemoryTrimmer(self.service.is_idle)
        self._server: RunningServer | None = None
        self._web: RunningHttpServer | None = None

    def start(
        self,
        repository: Repository | None = None,
        introspection: Introspection | None = None,
        *,
        shares_ports: bool = False,
    ) -> Listening:
        """Listen, and watch the model folders. `repository` and `introspection` are by default those of this process
        alone.

        With `shares_ports` other processes of this user listen on the same ports. Raises `ConfigError`.
        """
        serve = self._config.serve
        connections = Connections(
            serve.security, serve.max_message, shares_ports, serve.connection_age_s, serve.drain, serve.http_origins
        )
        introspection, actions = introspection or self.introspection, RepositoryActions(repository or self.repository)
        dataplane = self.telemetry.before(limited(self.service, serve.limits, by_token=serve.tokens is not None))
        self._server = start_server(
            dataplane,
            serve.listen,
            max_workers=self._calls + MAX_STREAMS,
            at_work=AT_WORK,
            connections=connections,
            extra=[
                self._health.add_to,
                Reflection().add_to,
                partial(add_repository_methods, actions=actions),
                partial(add_introspection_methods, introspection=introspection),
            ],
        )
        listening = Listening(self._server.addresses)
        if serve.listen_http:
            self._web = start_http_server(
                dataplane,
                serve.listen_http,
                max_workers=self._calls,
                at_work=AT_WORK,
                connections=connections,
                extensions=Extensions(introspection, actions),
            )
            listening = Listening(self._server.addresses, self._web.addresses)
        if self._watch is not None:
            self._watch.start()
        self._memory_trimmer.start()
        return listening

    def drain(self) -> bool:
        """Answer what was accepted, then end; False if that took too long and threads are still running.

        It reports "not ready" while the port is still open, so that clients learn of it, and then closes.
        """
        until_s = time.monotonic() + self._config.serve.drain
        self._health.enter_graceful_shutdown()
        self._memory_trimmer.stop()
        in_time = self.service.drain(self._config.serve.drain)
        time.sleep(_HANDING_OVER_S)
        if self._server is not None:  # over a slow link an answer takes longer than the closing
            self._server.wait_read(until_s - time.monotonic())
        if self._web is not None:
            self._web.wait_read(until_s - time.monotonic())
        self.service.refusals.settle()
        if self._server is not None:
            self._server.stop(_CLOSING_S, self._let_refused_go)
        if self._web is not None:
            self._web.stop(_CLOSING_S)
        self.telemetry.close()
        if not in_time:
            return False
        if not self.service.device_is_lost:  # else its driver may hang
            self.service.close()
        if self._watch is not None:
            self._watch.stop()
        gc.freeze()  # at exit the interpreter would otherwise scan all objects of a framework, which takes seconds
        return True

    def _let_refused_go(self) -> None:
        # Clients that wait for a refusal on a kept connection would send their next request into its closing.
        if self._web is not None:
            self._web.end()
        self.service.refusals.release()


def _told_to(counter: StatisticsCounter, on_run: OnRun | None) -> OnRun:
    """A callback that passes a run to both."""

    def ran(model: str, version: str, run: Run) -> None:
        counter.ran(model, version, run.rows, run.ended_s - run.started_s, time.time())
        if on_run is not None:
            on_run(model, version, run)

    return ran


def _to_serve(config: CloudConfig, restored: Restored) -> list[ModelFolder]:
    """The versions to serve. Raises `ConfigError`.

    A process that starts later than others offers the same versions as they do, unless each watches the folders itself.
    """
    others = restored.versions
    folders = find_models(config, begins=others is None, fatal=restored.fatal)
    if others is None or config.serve.repository.watch:
        return folders
    return [one for one in folders if str(one.version) in others.get(one.name, ())]


def _shown(folders: Sequence[ModelFolder], console: Console | None) -> Iterable[ModelFolder]:
    """The folders one by one, with a progress bar on a terminal."""
    hidden = console is None or not console.is_terminal
    return track(folders, "loading models", console=console, transient=True, disable=hidden)


_LOOK_S = 1.0
_GROWTH, _HELP = 1.05, 1.02
_LONGEST_S = 60.0
_ENDING_S = 5.0


class MemoryTrimmer:
    """A thread that returns unused memory to the system, checked every second.

    glibc keeps freed memory: a service that once received many large messages would stay at several times its size for
    ever. Memory is trimmed when the process `is_idle`, or after a minute without idling, while it uses 5 % more than
    its minimum; less and less often if that does not help. Without glibc nothing is done.
    """

    def __init__(self, is_idle: Callable[[], bool]) -> None:
        self._is_idle = is_idle
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start checking."""
        trim = heap_trimmer()
        if trim is not None:
            self._thread = BackgroundThread("memory-trim", partial(self._run, trim), self._ending.is_set)
            self._thread.start()

    def stop(self) -> None:
        """Stop checking."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(_ENDING_S)

    def _run(self, trim: Callable[[], None]) -> None:
        least = resident_bytes()
        pause_s, busy_s = _LOOK_S, 0.0
        while not self._ending.wait(pause_s):
            before = resident_bytes()
            least = min(least, before)
            if before <= _GROWTH * least:
                pause_s, busy_s = _LOOK_S, 0.0
            elif self._is_idle() or busy_s >= _LONGEST_S:
                trim()
                has_helped = resident_bytes() < before / _HELP
                pause_s, busy_s = (_LOOK_S if has_helped else min(2 * pause_s, _LONGEST_S)), 0.0
            else:
                busy_s += pause_s

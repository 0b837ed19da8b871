"""The life of the service's process: load, serve, drain."""

from __future__ import annotations

import logging
import os
import queue
import signal
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from upwell.cloud.config import CloudConfig
from upwell.cloud.loading import Attempt, BrokenModel, ServedModel, attempt, calls_at_once, find_models
from upwell.cloud.probes import MAX_STREAMS, Health, Reflection
from upwell.cloud.repository.control import ModelRepository
from upwell.cloud.repository.watch import RepositoryWatch
from upwell.cloud.service import CloudService
from upwell.shared.errors import ModelFailed
from upwell.shared.oip.http.server import RunningHttpServer, start_http_server
from upwell.shared.oip.repository import EXTENSION, add_repository_methods
from upwell.shared.oip.security import check_exposure
from upwell.shared.oip.server import RunningServer, start_server

_QUICK_CALLS = 16
"""Calls beside inference: health, metadata, loading, and requests that are refused at once."""
_CLOSING_S = 1.0


def run(config: CloudConfig) -> None:
    """Serve until SIGTERM or SIGINT, then answer what was accepted and come back.

    Nothing listens before every model has been loaded and warmed up. Raises `ConfigError`, and `ModelFailed`
    where no model at all can be served; one that is broken beside others is only not ready.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    check_exposure(
        [*config.serve.listen, *config.serve.listen_http], config.serve.security
    )  # loading may take minutes, so say this first
    attempts = _load(config, console)
    models = [one.result for one in attempts]
    changes = config.serve.repository
    service = CloudService(models, extra_extensions=[EXTENSION] if changes.control else [])
    health = Health({name: service.ready(name) for name in service.offers})
    repository = ModelRepository(config, service, attempts, health.show)
    watch = RepositoryWatch(repository, changes.watch) if changes.watch else None
    # Not an Event: a handler that sets one while this very thread enters its wait would lock itself out.
    stop: queue.SimpleQueue[None] = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.put(None))
    calls = calls_at_once(models, config) + _QUICK_CALLS
    server = start_server(
        service,
        config.serve.listen,
        max_workers=calls + MAX_STREAMS,
        max_message_bytes=config.serve.max_message,
        security=config.serve.security,
        extra=[health.add_to, Reflection().add_to, lambda server: add_repository_methods(server, repository)],
    )
    web = None
    if config.serve.listen_http:
        web = start_http_server(
            service,
            config.serve.listen_http,
            max_workers=calls,
            max_message_bytes=config.serve.max_message,
            security=config.serve.security,
        )
        console.print(f"HTTP on {', '.join(web.addresses)}", markup=False)
    _announce(console, models, server)
    if watch is not None:
        watch.start()
    stop.get()
    _drain(config, console, service, health, [server] if web is None else [server, web])
    if watch is not None:
        watch.stop()


def _load(config: CloudConfig, console: Console) -> list[Attempt]:
    folders = find_models(config)
    bar = track(folders, "loading models", console=console, transient=True, disable=not console.is_terminal)
    attempts = [attempt(folder, config) for folder in bar]
    broken = [one.result for one in attempts if isinstance(one.result, BrokenModel)]
    if len(broken) == len(attempts):
        reasons = "; ".join(f"{model.name} version {model.version}: {model.reason}" for model in broken)
        raise ModelFailed(f"no model can be served: {reasons or 'none of the versions that are asked for is there'}")
    return attempts


def _announce(console: Console, models: Sequence[ServedModel | BrokenModel], server: RunningServer) -> None:
    if console.is_terminal:
        table = Table("model", "version", "engine", "instances", "largest batch", "digest")
        for model in models:
            if isinstance(model, BrokenModel):
                table.add_row(model.name, model.version, "not ready", "", "", escape(model.reason))
            else:
                own = model.settings
                counts = (str(own.instances), str(own.max_batch))
                table.add_row(
                    model.name,
                    model.version,
                    f"{model.engine.version}, {own.device}",
                    *counts,
                    model.digest.removeprefix("sha256:")[:12],
                )
        console.print(table)
    count = len({model.name for model in models if isinstance(model, ServedModel)})
    console.print(f"serving on {', '.join(server.addresses)} ({count} model{'s' if count != 1 else ''})", markup=False)


def _drain(
    config: CloudConfig,
    console: Console,
    service: CloudService,
    health: Health,
    servers: Sequence[RunningServer | RunningHttpServer],
) -> None:
    """Say that no more is taken while the port is still open, so that whoever asks learns it, then close."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
    console.print("draining", markup=False)
    health.enter_graceful_shutdown()
    in_time = service.drain(config.serve.drain)
    for server in servers:
        server.stop(_CLOSING_S)
    if not in_time:
        console.print("error: some requests took longer than the drain time and are broken off", markup=False)
        logging.shutdown()
        os._exit(1)  # a plain exit would wait for their threads, however long
    service.close()

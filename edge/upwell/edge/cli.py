"""Running the agent for local callers, as `upwell agent` does. The command itself lies in a higher layer, which also
runs pipelines."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial

from upwell.edge.config import AgentConfig
from upwell.edge.observe.agent_health import summary
from upwell.edge.server.agent_assembly import assemble, serve_metrics
from upwell.edge.server.agent_core import AgentCore
from upwell.edge.server.agent_dataplane import AgentDataplane
from upwell.edge.server.result_stream import MAX_STREAMS, add_agent_service
from upwell.edge.spool.spooled_request import SpoolResult
from upwell.shared.config.addresses import parse_address, parse_endpoint
from upwell.shared.errors import ConfigError
from upwell.shared.oip.auth.request_quotas import limited
from upwell.shared.oip.grpc.server.server import Connections, RunningServer, start_server
from upwell.shared.oip.grpc.server.triton_extensions import add_introspection_methods, refuse_repository_methods
from upwell.shared.oip.http.server.extension_routes import Extensions
from upwell.shared.oip.http.server.server import RunningHttpServer, start_http_server
from upwell.shared.platform.process import StopSignals, Systemd
from upwell.shared.telemetry.logs import set_up_logs
from upwell.shared.telemetry.page_server import Page
from upwell.shared.units import count_of

DRAIN_S = 10.0
SPARE_WORKERS = 4
"""Threads beyond `max_requests`, for health checks and for refusing requests."""


@dataclass(frozen=True)
class Companion:
    """What runs in the process of `upwell agent` together with it.

    `on_result` gets the cloud's answers to spooled cases. `run` is entered once the agent is up, and left before it
    closes; it returns pages to serve beside the metrics.
    """

    on_result: Callable[[SpoolResult], None]
    run: Callable[[AgentCore], AbstractContextManager[Mapping[str, Page]]]


def run_agent(config: AgentConfig, *, verbose: bool, companion: Companion | None = None) -> None:
    """Run the agent until SIGTERM or Ctrl-C; accepted requests are answered first. Raises `ConfigError`."""
    settings = config.agent
    console = set_up_logs(settings.log, logging.DEBUG if verbose else logging.INFO)
    _check_cloud_is_another(config)
    # Fetching a model may take minutes: until serving starts, and after closing, a signal ends the process at once.
    with (
        ExitStack() as once_closed,
        assemble(config, None if companion is None else companion.on_result) as running,
        ExitStack() as beside,
    ):
        stop = StopSignals()
        once_closed.callback(stop.restore_default)
        pages = None if companion is None else beside.enter_context(companion.run(running))
        spool = running.spool
        introspection = AgentDataplane(running, settings.max_requests)
        dataplane = limited(introspection, settings.limits, by_token=settings.tokens is not None)
        connections = Connections(settings.security, settings.max_message, origins=settings.http_origins)
        server = start_server(
            dataplane,
            settings.listen,
            max_workers=settings.max_requests + SPARE_WORKERS + (MAX_STREAMS if spool else 0),
            extra=[
                partial(add_introspection_methods, introspection=introspection),
                refuse_repository_methods,
                *([partial(add_agent_service, spool=spool)] if spool else []),
            ],
            connections=connections,
        )
        web = None
        if settings.listen_http:
            web = start_http_server(
                dataplane,
                settings.listen_http,
                max_workers=settings.max_requests + SPARE_WORKERS,
                connections=connections,
                extensions=Extensions(introspection),
            )
            console.print(f"HTTP on {', '.join(web.addresses)}", markup=False)
        if settings.metrics is not None:
            console.print(f"metrics on {serve_metrics(running, settings.metrics, pages)}", markup=False)
        for health in running.health():
            console.print(summary(health), markup=False)
        _freeze(running)
        count = len(running.models)
        console.print(f"serving on {', '.join(server.addresses)} ({count_of(count, 'model')})", markup=False)
        _serve_until(stop, running)
        console.print("draining")
        if spool is not None:
            spool.news.close()  # otherwise streams of results would never end
        _drain(introspection, server, web)


def _check_cloud_is_another(config: AgentConfig) -> None:
    """Raise `ConfigError` for an endpoint where this agent listens: a request would come back to it again and again."""
    own = [parse_address(text) for text in (*config.agent.listen, *config.agent.listen_http)]
    for endpoint in () if config.cloud is None else config.cloud.endpoints:
        it = parse_endpoint(endpoint)
        hosts = {it.host, "127.0.0.1" if it.host == "localhost" else it.host}
        hosts |= {"0.0.0.0", "::"} if it.is_loopback else set()  # noqa: S104  where others listen, not this code
        if any((one.port, one.socket_path) == (it.port, it.socket_path) and one.host in hosts for one in own):
            text = f"{endpoint} is this agent's own address; expected the service's, or another `listen`"
            raise ConfigError.at(None, text, "cloud.endpoint")


def _drain(dataplane: AgentDataplane, server: RunningServer, web: RunningHttpServer | None) -> None:
    """Close the ports, in an order in which no request that was sent ends without an answer or a reason."""
    dataplane.drain()

    def closed() -> None:
        if web is not None:
            web.end()
        dataplane.release()

    server.stop(DRAIN_S, closed)
    if web is not None:
        web.stop(DRAIN_S)


def _freeze(running: AgentCore) -> None:
    """Leave what was loaded out of full collections, which otherwise stop all requests while they scan it.

    Not with a version on trial: it and its predecessor know each other, and only a collection frees the one that is not
    kept.
    """
    gc.collect()
    if not any(served.entry_model and served.entry_model.trial for served in running.models.values()):
        gc.freeze()


def _serve_until(stop: StopSignals, running: AgentCore) -> None:
    """Wait for a stop signal, and report to systemd if it started the process."""
    systemd = Systemd.of_environment()
    systemd.ready()
    systemd.ping_until(stop, lambda: not running.is_closed)
    systemd.stopping()

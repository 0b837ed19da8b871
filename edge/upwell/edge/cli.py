"""`upwell agent`: run the agent for local callers."""

from __future__ import annotations

import logging
import queue
import signal
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from upwell.edge.agent import Agent
from upwell.edge.config import AgentConfig
from upwell.edge.observe.health import summary
from upwell.edge.server.agent_service import MAX_STREAMS, add_agent_service
from upwell.edge.server.assembly import build_agent
from upwell.edge.server.dataplane import AgentDataplane
from upwell.shared.config.security import Address, parse_address
from upwell.shared.config.yaml import load_yaml
from upwell.shared.oip.auth.quotas import limited
from upwell.shared.oip.grpc.server import start_server
from upwell.shared.oip.http.server import start_http_server
from upwell.shared.platform.stopping import stop_signals
from upwell.shared.platform.systemd import Systemd
from upwell.shared.telemetry.logs import set_up_logs

DRAIN_S = 10.0
SPARE_WORKERS = 4
"""Calls beyond `max_requests` that still get a thread: health checks, and requests to be refused."""


def agent(
    config: Annotated[Path, typer.Option("--config", "-c", help="The agent.yaml to run.")],
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> None:
    """Run the agent until SIGTERM or Ctrl-C; what was accepted by then is answered first."""
    settings = load_yaml(config, AgentConfig).agent
    console = set_up_logs(settings.log, logging.DEBUG if verbose else logging.INFO)
    # Not an Event: a handler that sets one while this very thread enters its wait would lock itself out.
    stop: queue.SimpleQueue[None] = queue.SimpleQueue()
    # It may fetch a model for minutes: until then a signal ends it at once.
    with build_agent(Agent, config) as running:
        for number in stop_signals():
            signal.signal(number, lambda *_: stop.put(None))
        spool = running.spool
        dataplane = limited(
            AgentDataplane(running, settings.max_requests), settings.limits, by_token=settings.tokens is not None
        )
        server = start_server(
            dataplane,
            settings.listen,
            max_workers=settings.max_requests + SPARE_WORKERS + (MAX_STREAMS if spool else 0),
            max_message_bytes=settings.max_message,
            security=settings.security,
            extra=[partial(add_agent_service, spool=spool)] if spool else [],
        )
        web = None
        if settings.listen_http:
            web = start_http_server(
                dataplane,
                settings.listen_http,
                max_workers=settings.max_requests + SPARE_WORKERS,
                max_message_bytes=settings.max_message,
                security=settings.security,
            )
            console.print(f"HTTP on {', '.join(web.addresses)}", markup=False)
        metrics = None
        if settings.metrics is not None:
            address = parse_address(settings.metrics)
            metrics = running.metrics.serve(address.host, address.port)
            console.print(f"metrics on http://{Address(address.host, metrics.server_port)}/metrics", markup=False)
        for health in running.health():
            console.print(summary(health), markup=False)
        count = len(running.models)
        console.print(
            f"serving on {', '.join(server.addresses)} ({count} model{'s' if count > 1 else ''})", markup=False
        )
        _serve_until(stop, running)
        console.print("draining")
        if spool is not None:
            spool.news.close()  # streams of results would not end by themselves
        server.stop(DRAIN_S)
        if web is not None:
            web.stop(DRAIN_S)
        if metrics is not None:
            metrics.shutdown()


def _serve_until(stop: queue.SimpleQueue[None], running: Agent) -> None:
    """Wait for an entry of `stop`, and tell systemd, where that started us, how we are."""
    systemd = Systemd.of_environment()
    systemd.ready()
    systemd.ping_until(stop, lambda: not running.is_closed)
    systemd.stopping()

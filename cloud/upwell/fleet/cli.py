"""`upwell fleet serve`: run the fleet service."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from upwell.fleet.config import FleetConfig
from upwell.shared.config.security import warn_of_root
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError, ExtraMissing
from upwell.shared.telemetry.logs import set_up_logs
from upwell.shared.units import count_of


def serve(
    config: Annotated[Path, typer.Option("--config", "-c", help="The fleet.yaml to run.")],
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more details.")] = False,
) -> None:
    """Run the fleet service until SIGTERM or Ctrl-C."""
    section = load_yaml(config, FleetConfig).fleet
    console = set_up_logs(section.log, logging.DEBUG if verbose else logging.INFO)
    for name in ("alembic", "uvicorn"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warn_of_root(section.listen)
    with ExtraMissing.on_import("fleet", "upwell fleet serve needs PACKAGE"):
        from upwell.fleet.service.application import open_fleet
        from upwell.fleet.service.server import FleetServer
        from upwell.fleet.storage.database import sole_service
    with ExitStack() as held:
        try:
            held.enter_context(sole_service(section.database))
            fleet = open_fleet(section)
            server = FleetServer(fleet)
        except ConfigError as error:
            raise ConfigError([replace(one, path=one.path or config) for one in error.problems]) from None
        devices, users = fleet.counts()
        console.print(f"serving on {', '.join(server.addresses)} ({count_of(devices, 'device')})", markup=False)
        if section.tls is None:
            console.print(f"devices and people trust {section.authority.cert}", markup=False)
        if not users:
            hint = f"there are no users yet: upwell fleet user add NAME --role operator -c {config}"
            console.print(hint, markup=False)
        server.run()

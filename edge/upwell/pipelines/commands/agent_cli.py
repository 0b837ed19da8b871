"""`upwell agent`: serves local callers and runs the pipelines named in agent.yaml."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from upwell.edge.cli import Companion, run_agent
from upwell.edge.config import AgentConfig
from upwell.edge.server.agent_core import AgentCore
from upwell.shared.config.yaml import as_yaml, load_yaml
from upwell.shared.errors import ConfigError, ExtraMissing
from upwell.shared.telemetry.page_server import Page


def agent(
    config: Annotated[Path, typer.Option("--config", "-c", help="The agent.yaml to run.")],
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more details.")] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the configuration with all defaults, and exit.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --print-config: print JSON instead of YAML.")] = False,
) -> None:
    """Run the agent until SIGTERM or Ctrl-C. Requests accepted by then are answered first.

    If agent.yaml names `pipelines`, they run in the same process.
    """
    agent_config = load_yaml(config, AgentConfig)
    if print_config:
        written = agent_config.as_written()
        typer.echo(json.dumps(written) if as_json else as_yaml(written))
        return
    if as_json:
        raise ConfigError.at(None, "--json needs --print-config")
    companion = None if agent_config.pipelines is None else _companion(agent_config, agent_config.pipelines)
    run_agent(agent_config, verbose=verbose, companion=companion)


def _companion(config: AgentConfig, path: Path) -> Companion:
    """The pipelines of the file. Raises `ConfigError` if it is wrong, before any model is loaded."""
    # An agent without pipelines does not need this package.
    with ExtraMissing.on_import("pipelines", "pipelines need PACKAGE", "pipelines"):
        from upwell.pipelines.commands.run_cli import pages_of
        from upwell.pipelines.run.late_answers import LateResults
        from upwell.pipelines.run.pipelines_file import load, running_file
    load(path, config)
    results = LateResults()

    @contextmanager
    def run(running: AgentCore) -> Iterator[Mapping[str, Page]]:
        with running_file(path, config, running, results) as runner:
            runner.start()
            yield pages_of(runner, config.agent.metrics)

    return Companion(results, run)

"""`upwell run`: pipelines around an agent, in one process."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from upwell.edge.config import AgentConfig
from upwell.edge.observe.agent_health import summary
from upwell.edge.server.agent_assembly import assemble, serve_metrics
from upwell.pipelines.preview.preview import preview_pages
from upwell.pipelines.run.late_answers import LateResults
from upwell.pipelines.run.pipeline_runner import PipelineRunner
from upwell.pipelines.run.pipelines_file import load, running_file
from upwell.shared.config.addresses import parse_address
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import EXIT_FAILED, ConfigError
from upwell.shared.platform.process import StopSignals, Systemd
from upwell.shared.telemetry.logs import set_up_logs
from upwell.shared.telemetry.page_server import Page

_LOOK_S = 0.2


def run(
    pipelines: Annotated[Path, typer.Argument(metavar="PIPELINES", help="The pipelines file (YAML).")],
    config: Annotated[Path | None, typer.Option("--config", "-c", help="The agent.yaml with their models.")] = None,
    models: Annotated[
        Path | None, typer.Option(help="Instead of an agent.yaml: a folder with a bundle or file for each model.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more details.")] = False,
) -> None:
    """Run pipelines until their sources have ended, or until SIGTERM or Ctrl-C.

    Exit code 1 if a source failed, or if events are lost because no sink took them and there is no `state_dir`.
    """
    agent_config = agent_config_of(config, models)
    console = set_up_logs(agent_config.agent.log, logging.DEBUG if verbose else logging.INFO)
    load(pipelines, agent_config)  # reports problems of the file before any model is loaded
    metrics = agent_config.agent.metrics
    results = LateResults()
    with ExitStack() as once_closed, assemble(agent_config, results) as agent:
        stop = StopSignals()
        once_closed.callback(stop.restore_default)
        with running_file(pipelines, agent_config, agent, results) as runner:
            if metrics is not None:
                where = serve_metrics(agent, metrics, pages_of(runner, metrics))
                console.print(f"metrics on {where}", markup=False)
                if runner.previews:
                    console.print(f"preview on {where.removesuffix('metrics')}preview", markup=False)
            for health in agent.health():
                console.print(summary(health), markup=False)
            runner.start()
            console.print(f"running {', '.join(runner.pipelines)}", markup=False)
            _run_until(stop, runner)
            has_failed = runner.has_failed
            console.print("stopping", markup=False)
        are_lost = agent_config.agent.state_dir is None and runner.undelivered > 0
    if has_failed or are_lost:
        raise typer.Exit(EXIT_FAILED)


def _run_until(stop: StopSignals, runner: PipelineRunner) -> None:
    """Wait for a stop signal or the end of all sources. Report status to systemd if it started this process."""
    systemd = Systemd.of_environment()
    systemd.ready()
    while stop.receive(_LOOK_S) is None and not runner.is_over:
        pass
    systemd.stopping()


def pages_of(runner: PipelineRunner, metrics: str | None) -> Mapping[str, Page]:
    """The pages of the preview, also if previews may only come later. None if other machines could see them."""
    return preview_pages(runner.previews) if metrics is not None and parse_address(metrics).is_loopback else {}


def agent_config_of(config: Path | None, models: Path | None) -> AgentConfig:
    """The configuration of the agent that the pipelines run around. Raises `ConfigError`."""
    if (config is None) == (models is None):
        raise ConfigError.at(None, "expected either an agent.yaml or a folder of models", "-c, --models")
    if config is not None:
        return load_yaml(config, AgentConfig)
    assert models is not None  # noqa: S101  one of the two, as seen above
    if not models.is_dir():
        raise ConfigError.at(models, "no such folder; expected one with a bundle or file for each model", "--models")
    sides = {path.stem: side for path in sorted(models.iterdir()) if (side := _side(path)) is not None}
    if not sides:
        raise ConfigError.at(
            models, "no models in this folder; expected bundles, or files *.onnx and *.tflite", "--models"
        )
    sections = {name: {"edge": side} for name, side in sides.items()}
    return AgentConfig.model_validate({"agent": {"metrics": "127.0.0.1:0"}, "models": sections})


def _side(path: Path) -> dict[str, str] | None:
    if path.is_dir():
        return {"bundle": str(path.absolute())}
    return {"file": str(path.absolute())} if path.suffix in (".onnx", ".tflite") else None

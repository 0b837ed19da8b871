"""Loads the pipelines file of an agent, runs its pipelines, and follows changes of the file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from upwell.edge.config import AgentConfig
from upwell.edge.observe.agent_health import HealthPart
from upwell.edge.policy.periodic_jobs import PeriodicJobs
from upwell.edge.server.agent_core import AgentCore
from upwell.pipelines.config.model_signatures import signatures_of
from upwell.pipelines.config.pipelines_check import parse_pipelines
from upwell.pipelines.config.pipelines_config import PipelinesConfig
from upwell.pipelines.preview.preview import check_preview_address
from upwell.pipelines.run.late_answers import LateResults
from upwell.pipelines.run.pipeline_factory import build_pipelines
from upwell.pipelines.run.pipeline_runner import PipelineRunner
from upwell.pipelines.run.released_pipelines import ReleasedPipelines
from upwell.shared.config.yaml import read_text
from upwell.shared.errors import ConfigError
from upwell.shared.platform.watched_files import SettledFile

_log = logging.getLogger(__name__)


def load(path: Path, agent: AgentConfig) -> PipelinesConfig:
    """Load the file and check it against the agent's models and address; log warnings. Raises `ConfigError`."""
    config, warnings = parse_pipelines(read_text(path), path, signatures_of(agent))
    for name, section in config.pipelines.items():
        if section.preview:
            check_preview_address(agent.agent.metrics, f"pipelines.{name}.preview")
    for warning in warnings:
        _log.warning("%s", warning)
    return config


@contextmanager
def running_file(path: Path, config: AgentConfig, agent: AgentCore, results: LateResults) -> Iterator[PipelineRunner]:
    """The pipelines of the file, not started, in the agent's metrics and health; changes of the file are applied.

    A wrong file is refused as a whole, and the former pipelines go on. If agent.yaml says where releases come from,
    the pipelines of a release replace those of the file. Raises `ConfigError` if the file is wrong at the start.
    """

    def take(changed: PipelinesConfig) -> str:
        try:
            runner.change(changed)
        except ConfigError as error:
            return str(error)
        return ""

    file = SettledFile(path, lambda: load(path, config), take, "pipelines")

    def health() -> HealthPart:
        part = runner.health()
        problems = [f"the pipelines file is not in force: {file.problem}"] if file.problem else []
        return replace(part, problems=[*problems, *part.problems])

    with build_pipelines(file.value, agent, config.agent.state_dir, results) as runner:
        agent.metrics.export(runner.families)
        agent.describe_with("pipelines", health)
        if agent.release is not None:  # releases alone decide; the file is what the device came with
            agent.release.run_pipelines(ReleasedPipelines(path, config, load, runner.change))
        watching = PeriodicJobs(*([file.poll] if agent.release is None else []))
        try:
            yield runner
        finally:
            runner.stop()  # so that no change is applied any more
            watching.close()

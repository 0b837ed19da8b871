"""A pipeline for a program with a loop of its own, which gets each answered frame in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from upwell.edge.config import AgentConfig
from upwell.edge.server.agent_assembly import assemble
from upwell.edge.server.agent_core import AgentCore
from upwell.pipelines.config.model_signatures import signatures_of
from upwell.pipelines.config.pipelines_check import parse_pipelines
from upwell.pipelines.frame_outcome import AnsweredFrame, PipelineStatus
from upwell.pipelines.run.late_answers import LateResults
from upwell.pipelines.run.pipeline_factory import build_pipelines
from upwell.pipelines.run.pipeline_runner import PipelineRunner
from upwell.shared.config.yaml import load_yaml, read_text
from upwell.shared.platform.closing import Closing


class Pipeline(Closing):
    """One pipeline of a pipelines.yaml and the agent that answers it, in this process.

    Iterate over it to get each answered frame; its events go to its sinks as under `upwell run`. Close it, or use it
    as a context manager. `stop`, `status` and `agent` are safe to use from other threads.
    """

    def __init__(self, agent: AgentCore, runner: PipelineRunner, name: str, parts: ExitStack) -> None:
        self.agent = agent
        """The agent, which also answers other requests."""
        self.name = name
        self._pipeline = runner.pipelines[name]
        self._parts = parts

    @classmethod
    def from_config(cls, pipelines: str | Path, agent: str | Path, name: str | None = None) -> Pipeline:
        """The pipeline `name` of the file `pipelines`; the name may be omitted if there is only one.

        `agent` is the path of agent.yaml, whose models are loaded now. Raises `ConfigError`.
        """
        path, agent_config = Path(pipelines), load_yaml(Path(agent), AgentConfig)
        config, _ = parse_pipelines(read_text(path), path, signatures_of(agent_config))
        chosen = config.chosen(name)
        alone = config.model_copy(update={"pipelines": {chosen: config.pipelines[chosen]}})
        others = {other: section for other, section in config.pipelines.items() if other != chosen}
        results = LateResults()
        with ExitStack() as on_failure:
            running = on_failure.enter_context(assemble(agent_config, results))
            state_dir = agent_config.agent.state_dir
            runner = on_failure.enter_context(
                build_pipelines(alone, running, state_dir, results, shows_frames=True, others=others)
            )
            return cls(running, runner, chosen, on_failure.pop_all())

    def __iter__(self) -> Iterator[AnsweredFrame]:
        """Each frame that is answered in time, until the source ends or `stop` is called. In one thread.

        A live source goes on while the loop is busy: newer frames replace those that wait.
        """
        return iter(self._pipeline)

    @property
    def status(self) -> PipelineStatus:
        """The state of its source, and its frames by outcome."""
        return self._pipeline.status

    def stop(self) -> None:
        """End the iteration after the frame in progress."""
        self._pipeline.stop()

    def close(self) -> None:
        """Stop, deliver what sinks accept within seconds, and close the agent. Calling it twice is harmless."""
        self._parts.close()

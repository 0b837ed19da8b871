"""The agent: answers requests on the device or lifts them to the cloud, within the deadline and with a reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from upwell.edge.server.core import AgentCore
from upwell.edge.spool.item import SpoolResult


class Agent(AgentCore):
    """Serves models in this process. Safe to use from many threads; close it, or use it as a context manager."""

    @classmethod
    def from_config(cls, path: str | Path, on_result: Callable[[SpoolResult], None] | None = None) -> Agent:
        """The agent that `agent.yaml` describes, its models loaded and warmed up. Raises `ConfigError`.

        It serves `agent.metrics`, and leaves out what is about other callers (`listen` and the like): the log says so.
        `on_result` is called, on a thread of the agent's, with each answer of the cloud to a case that was kept.
        """
        # Files, runtimes, updates and servers are needed by what starts, not by what imports.
        from upwell.edge.server.assembly import embedded_agent

        return embedded_agent(cls, Path(path), on_result)

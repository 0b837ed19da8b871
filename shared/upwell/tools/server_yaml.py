"""Loads an agent.yaml or a cloud.yaml, whichever it is, for commands that take either."""

from __future__ import annotations

from pathlib import Path

from upwell.cloud.config import CloudConfig
from upwell.edge.config import AgentConfig
from upwell.shared.config.yaml import parse_yaml, read_text
from upwell.shared.config.yaml_tree import read_tree


def load_server_yaml(path: Path) -> AgentConfig | CloudConfig:
    """The configuration of a service if the file has the key `serve`, else of an agent. Raises `ConfigError`."""
    text = read_text(path)
    top = read_tree(text, path).value
    is_service = isinstance(top, dict) and "serve" in top
    return parse_yaml(text, CloudConfig, path) if is_service else parse_yaml(text, AgentConfig, path)

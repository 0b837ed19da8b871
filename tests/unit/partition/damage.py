"""What becomes of a damaged model file."""

from __future__ import annotations

from pathlib import Path

from upwell.shared.errors import ConfigError
from upwell.shared.partition.graph_contraction import contract
from upwell.shared.partition.read_graph import read_graph


def outcome(path: Path) -> int:
    """Nodes of the graph; 0 where the file is refused, in one line."""
    try:
        return len(contract(read_graph(path)).nodes)
    except ConfigError as error:
        (problem,) = error.problems
        return 0 if "\n" not in problem.message else -1

"""Pipelines: from a camera to an action around an agent, with the deadline counted from capture."""

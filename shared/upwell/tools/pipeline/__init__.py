"""Runs pipelines offline, on a recorded video."""

"""Pipelines offline: a recorded video through a pipeline, to see what it would say."""

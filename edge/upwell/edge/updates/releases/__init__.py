"""Releases: bundles, policy, pipelines and calibrations as one signed unit, from the repository to serving."""

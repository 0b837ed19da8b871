"""Releases: bundles, policy, pipelines and calibrations as one signed unit, from a repository to what is served."""

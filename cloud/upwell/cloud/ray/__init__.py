"""Adapter for Ray Serve."""

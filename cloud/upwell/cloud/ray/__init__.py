"""The adapter for Ray Serve."""

"""Drift: whether a model's inputs and outputs are still like those for which its bundle was made."""

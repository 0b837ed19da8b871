"""Drift: whether what a model is given, and what it says, is still what its bundle was made with."""

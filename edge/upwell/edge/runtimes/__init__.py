"""Runtimes on the device: loading, placement evidence, coverage, probing."""

"""Runtimes on the device: opening, evidence, coverage, probing."""

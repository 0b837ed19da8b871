"""Drift on the device: each row is measured, held against the bundle's reference, and what moved is told."""

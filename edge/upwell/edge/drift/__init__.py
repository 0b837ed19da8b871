"""Drift on the device: rows are measured and compared with the bundle's reference, and changes are reported."""

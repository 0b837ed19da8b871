"""Calibration: chooses thresholds from a request log that keep a share or a risk."""

"""Scheduling of the device: admission, order and preemption of waiting runs. Pure; time is an argument."""

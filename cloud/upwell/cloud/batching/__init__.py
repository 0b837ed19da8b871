"""Queues, the scheduler of a device, and merging requests into runs."""

"""Threads, memory, signals, systemd."""

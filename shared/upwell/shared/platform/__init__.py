"""Threads, memory, signals and systemd."""

"""Threads, memory, imports, signals and systemd."""

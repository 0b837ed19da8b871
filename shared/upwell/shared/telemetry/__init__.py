"""Traces, logs and metrics of agent and service."""

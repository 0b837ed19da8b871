"""Observability of an agent: metrics, health, request log, audits, flight recorder."""

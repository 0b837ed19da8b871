"""Metrics, access log and traces of the service."""

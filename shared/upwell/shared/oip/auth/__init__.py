"""Callers, tokens, limits, quotas and TLS."""

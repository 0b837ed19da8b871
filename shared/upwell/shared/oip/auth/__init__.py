"""Callers, tokens, limits, quotas, TLS."""

"""Replays a request log over a link with the agent's own router, and with four simpler strategies."""

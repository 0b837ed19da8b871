"""Replay of a request log over a link's capacity with the agent's own router, beside four simpler ways to route."""

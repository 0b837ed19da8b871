"""The engine jax: XLA without torch."""

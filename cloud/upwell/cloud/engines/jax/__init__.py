"""XLA, without torch."""

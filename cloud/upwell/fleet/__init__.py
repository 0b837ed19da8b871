"""Many devices managed from one place: their identity, their state, and the release that each is to run."""

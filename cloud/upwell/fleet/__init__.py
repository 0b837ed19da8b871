"""Many devices from one place: who they are, how they fare, and which release each is to run."""

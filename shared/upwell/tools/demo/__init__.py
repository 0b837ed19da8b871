"""`upwell demo`."""

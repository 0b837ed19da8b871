"""`upwell top`: a running agent or service at a glance."""

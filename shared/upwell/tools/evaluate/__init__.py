"""`upwell evaluate`: two models on the cases that chance chose."""

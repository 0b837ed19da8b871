"""`upwell partition`: profile, plan and split a model."""

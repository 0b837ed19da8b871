"""`upwell partition`: profiles, plans and splits a model."""

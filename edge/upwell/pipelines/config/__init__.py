"""`pipelines.yaml`: its schema, and the check that its steps, events and models fit together."""

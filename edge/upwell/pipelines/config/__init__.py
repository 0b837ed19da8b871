"""`pipelines.yaml`: its schema, and the check that steps, events and models fit together."""

"""The history of the schema, step by step; applied when the service starts."""

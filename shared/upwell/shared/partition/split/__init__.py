"""The two halves of a model, as files in its own format."""

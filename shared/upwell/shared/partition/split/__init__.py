"""The two halves of a model, as files of its own format."""

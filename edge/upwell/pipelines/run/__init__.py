"""The use case: frames through the steps of a pipeline, events out of it, and late answers to their own events."""

"""The use case: frames go through the steps of a pipeline, events come out, and late answers amend their events."""

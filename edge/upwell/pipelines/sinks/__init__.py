"""Where the events of pipelines go: an outbox on disk, and the sinks behind it."""

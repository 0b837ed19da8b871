"""One request: its driver, its answer, its record, its spans."""

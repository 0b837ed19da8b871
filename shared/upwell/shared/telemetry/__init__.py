"""What agent and service tell their operator: traces, logs, metrics."""

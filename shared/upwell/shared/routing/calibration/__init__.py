"""From a request log to a threshold that keeps a share or a risk: pure arithmetic on what was logged."""

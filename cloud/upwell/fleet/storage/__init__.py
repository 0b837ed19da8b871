"""All that the service remembers, in SQL alone, so that replicas stand behind any balancer."""

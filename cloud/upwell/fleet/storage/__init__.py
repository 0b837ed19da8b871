"""All persistent state of the service, in SQL alone, so that replicas can stand behind any balancer."""

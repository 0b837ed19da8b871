"""What can be seen of the service: metrics, access log, traces."""

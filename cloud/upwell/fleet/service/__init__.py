"""The process: sockets, TLS, the application, and what it does beside the requests."""

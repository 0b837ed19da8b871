"""The process: sockets, TLS, the application, and its background work."""

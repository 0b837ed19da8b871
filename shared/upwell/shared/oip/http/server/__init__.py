"""The HTTP/1.1 server over a `Dataplane`: sockets, connections, routes."""

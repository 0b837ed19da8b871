"""The protocol over gRPC: server, client, and the fast path of the server."""

"""The protocol over gRPC: server, streams, client."""

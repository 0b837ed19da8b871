"""The protocol over gRPC: server, streams and client."""

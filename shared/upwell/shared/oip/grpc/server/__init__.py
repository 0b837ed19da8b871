"""The gRPC server over a `Dataplane`: its methods, streams, and limits on slow clients."""

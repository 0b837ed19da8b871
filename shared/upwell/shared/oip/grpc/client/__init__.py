"""The gRPC client: channels, calls, and the network interface they go over."""

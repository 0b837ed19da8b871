"""The one place that knows gRPC's inner parts."""

"""The only package that uses gRPC's private parts."""

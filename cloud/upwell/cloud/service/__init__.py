"""The use case of the service, its models and their versions, loading and unloading."""

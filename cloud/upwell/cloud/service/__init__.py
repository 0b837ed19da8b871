"""The service's use case: requests, models and their versions, loading and unloading."""

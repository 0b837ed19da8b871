"""The service's processes and their supervisor."""

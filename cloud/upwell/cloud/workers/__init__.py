"""Processes of the service, and their supervisor."""

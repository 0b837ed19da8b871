"""Policies: the file, its rules, what they come to for one request."""

"""Policies: the file, its rules, and their result for one request."""

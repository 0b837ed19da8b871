"""Wheels in a folder, and the script beside them that puts an agent on a device without a network."""

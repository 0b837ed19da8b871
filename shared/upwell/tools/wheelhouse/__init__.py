"""Wheels in a folder, and the script beside them that installs an agent on a device without a network."""

"""The agent as a whole: its core, its assembly, its dataplane, its state folder."""

"""The agent as a whole: its core, how it is assembled, its dataplane, its state folder."""

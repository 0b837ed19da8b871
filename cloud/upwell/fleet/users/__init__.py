"""The users of the service, and the audit log of their actions."""

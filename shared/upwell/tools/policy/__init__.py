"""The subcommands of `upwell policy`."""

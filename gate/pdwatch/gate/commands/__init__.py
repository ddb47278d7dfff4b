"""The subcommands of `pdwatch`."""

"""The command line; nothing here is worth importing."""

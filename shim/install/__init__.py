"""`pydockershim install` and `uninstall`: set up a node for the server, and undo it."""

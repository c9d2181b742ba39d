"""Docker by hand on a node: how its commands affect the server's pods."""

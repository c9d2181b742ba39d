"""Docker by hand on a node: what its commands do to the pods of the server."""

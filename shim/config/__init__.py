"""The server's settings: their definition (model) and the sources of their values (load)."""

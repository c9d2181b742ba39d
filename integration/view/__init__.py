"""The node view on real engines: restarts, hanging calls, broken event streams and changes by others."""

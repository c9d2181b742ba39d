"""The node view on real engines: through restarts, hanging calls, broken event streams and the deeds of others."""

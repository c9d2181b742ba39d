"""The node view on real engines: through restarts, hanging calls, broken event streams and what others do."""

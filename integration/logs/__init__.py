"""Container logs on real engines."""

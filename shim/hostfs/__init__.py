"""Functions on host paths that may block forever, run in a helper process."""

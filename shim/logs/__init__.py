"""Container logs in the CRI's format, which a separate process copies from Docker's `json-file` or `local` logs."""

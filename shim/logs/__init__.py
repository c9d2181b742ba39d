"""Container logs in the CRI's format. A separate process copies them from Docker's `json-file` or `local` logs."""

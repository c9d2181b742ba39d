"""Container logs in the CRI's format: a process of its own copies them out of Docker's `json-file` or `local` logs."""

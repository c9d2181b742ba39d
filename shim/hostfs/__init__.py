"""Functions on paths and processes of the host that may never return, run in a helper process."""

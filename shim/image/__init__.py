"""Images: pull, list, inspect and remove them, and report their disk usage."""

"""Checkpoints of containers: runc and criu are run, and what they leave becomes an archive."""

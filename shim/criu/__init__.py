"""Checkpoints of containers: runs runc and criu, and packs their output."""

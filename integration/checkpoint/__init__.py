"""Checkpoints of containers, with a real criu."""

"""Reported usage of containers and pods, compared with known loads."""

"""Exec, attach and port-forward, driven by clients that are not ours."""

"""Exec, attach and port-forward, driven by clients of other projects."""

"""The streaming server: exec, attach and port-forward over HTTP upgrades."""

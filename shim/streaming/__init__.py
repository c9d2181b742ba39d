"""The streaming server: exec, attach and port-forward over upgraded HTTP connections. It knows no Docker and no pod."""

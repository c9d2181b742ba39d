"""The streaming server: exec, attach and port-forward over upgraded HTTP connections. Knows neither Docker nor pods."""

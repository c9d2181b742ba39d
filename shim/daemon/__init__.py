"""The server process: composition, recovery after a start, watchdog and metrics."""

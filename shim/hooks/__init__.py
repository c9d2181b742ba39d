"""NRI events of pods and containers, and how the server applies the plugins' answers."""

"""What NRI plugins are told of pods and containers, and what becomes of their answers."""

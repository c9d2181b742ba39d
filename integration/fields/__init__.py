"""Every field of pods and containers on a real engine, seen from inside."""

"""The Engine adapter on real Engines."""

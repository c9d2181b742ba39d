"""Image calls on real engines and registries."""

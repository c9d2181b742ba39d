"""The node view: this node's pods, containers and images in memory, kept current by Docker's events."""

"""The node view: pods, containers and images of this node in memory, kept current by Docker's events."""

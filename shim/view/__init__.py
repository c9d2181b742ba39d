"""The node view: what pods, containers and images are on this node now, kept current by Docker's events."""

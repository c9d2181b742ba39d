"""The node itself: versions, readiness and configuration."""

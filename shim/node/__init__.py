"""The node itself: versions, readiness, and what the kubelet and the runtime tell each other about it."""

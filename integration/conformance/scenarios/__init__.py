"""What a user of a cluster does: a function for each behaviour, named by what it shows."""

from integration.conformance.scenarios import network, node, pods, resources, security, streams, volumes

__all__ = ["network", "node", "pods", "resources", "security", "streams", "volumes"]

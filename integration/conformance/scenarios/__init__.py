"""The behaviours that a user of a cluster relies on: a function for each, named after the behaviour."""

from integration.conformance.scenarios import network, node, pods, resources, security, streams, volumes

__all__ = ["network", "node", "pods", "resources", "security", "streams", "volumes"]

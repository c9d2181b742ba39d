"""Pods and containers that a test makes, removed at its end."""

from integration.pods.conftest import kubelet, pod

__all__ = ("kubelet", "pod")

"""Pods and containers of one test, removed with it."""

from integration.pods.conftest import kubelet, pod

__all__ = ("kubelet", "pod")

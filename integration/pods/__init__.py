"""Pods and containers over the socket of the CRI, on real engines with real CNI plugins."""

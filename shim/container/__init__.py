"""Application containers: a file per RPC of the CRI, and shared functions."""

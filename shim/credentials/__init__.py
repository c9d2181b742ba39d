"""Credentials for pulls without any, from the sources that the kubelet uses."""

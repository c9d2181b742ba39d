"""Credentials for pulls that bring none, found where the kubelet finds them."""

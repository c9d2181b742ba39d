"""Credentials for pulls without any, from the places where the kubelet finds them."""

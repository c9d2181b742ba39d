"""The OCI runtime that changes a container's config.json as the server has ordered, then executes runc.

docs/oci-runtime.md describes it. It is a program of its own, started by containerd's shim as root for each container
that has an order. So it imports nothing but the standard library, and no other folder of the server.
"""

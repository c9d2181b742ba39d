"""The OCI runtime that changes a container's config.json as the server has ordered, then executes runc.

docs/oci-runtime.md describes it. It is a separate program. containerd's shim starts it as root for each container
that has an order. So it imports nothing but the standard library, and no other folder of the server.
"""

"""The OCI runtime: changes a container's config.json as the server has ordered, then executes runc.

docs/oci-runtime.md describes it. It is a separate program, which containerd-shim starts as root for each container that
has an order. So it imports only the standard library and `shim.base.proc`.
"""

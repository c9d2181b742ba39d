"""Facts about the Docker daemon, containerd and runc on this node, beyond the Engine API of `shim.engine`."""

"""Resource usage of containers and pods, read from the kernel's files: nothing in this package asks Docker for it."""

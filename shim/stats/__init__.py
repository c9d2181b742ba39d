"""Resource usage of containers and pods, read from the kernel's files. Docker is not asked for it."""

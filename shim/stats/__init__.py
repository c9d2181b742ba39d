"""What containers and pods use, from files of the kernel alone: no question of this package is one to Docker."""

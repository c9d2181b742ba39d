"""What must outlive the shim about each pod sandbox, and cannot be asked from Docker."""

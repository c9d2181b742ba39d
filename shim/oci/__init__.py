"""The server's side of its OCI runtime (`shim.oci_runtime`): whether Docker has it, and the orders it reads."""

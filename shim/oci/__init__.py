"""The server's side of its OCI runtime (`shim.oci_runtime`): checks that Docker has it, and writes its orders."""

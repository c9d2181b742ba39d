"""The program: `create` and `exec` of a container with an order. The calling shell script handles all other verbs.

Its arguments are the directory of orders, the OCI runtime to execute, and that runtime's arguments.
"""

import os
import sys

# Python runs isolated from all packages (-IS). The program needs only the package `shim`, which holds this file.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from shim.oci_runtime.command import main

if __name__ == "__main__":
    main(sys.argv[1:])

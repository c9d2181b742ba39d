"""The program: `create` and `exec` of a container with an order. The shell script that starts it does all other verbs.

Arguments are the directory of orders, the OCI runtime to execute at last, and that runtime's own arguments.
"""

import os
import sys

# Python is isolated from all packages (-IS). The program needs the package `shim` alone, which holds this file.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from shim.oci_runtime.command import main

if __name__ == "__main__":
    main(sys.argv[1:])

"""The program: `create` of a container with an order. The shell script that starts it does all other verbs.

Arguments are the directory of orders, the OCI runtime to execute at last, and that runtime's own arguments.
"""

import os
import sys

# Isolated from all packages (-IS): the one folder of the server that it needs is beside this file.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from shim.oci_runtime.command import main

if __name__ == "__main__":
    main(sys.argv[1:])

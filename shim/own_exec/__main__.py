"""The exec program, which joins containers: `python __main__.py DESCRIPTOR`, with a socket to the server.

With the argument `listen`, systemd passes a listening socket, and the program accepts the server's connection.

The program forks for each command (`join`) and reaps its children. The server's process never enters a namespace.
"""

import os
import sys

# Python runs without any package directory (-IS). The program needs only the package `shim`, which contains this file.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from shim.oci_runtime.kernel import clone_tree, forbid_writes
from shim.own_exec import LISTEN

_SEALED = "sealed"
"""The last argument if Python runs from the read-only mount."""


def _execute_sealed() -> None:
    """Execute this program again, with Python's file on a read-only mount that has no path.

    A container can open the executable of a process inside it through /proc/<pid>/exe. Without the read-only mount it
    could overwrite the host's Python (CVE-2019-5736).
    """
    opened = os.open("/proc/self/exe", os.O_PATH | os.O_CLOEXEC)
    tree = clone_tree(opened)
    forbid_writes(tree)
    os.execve(f"/proc/self/fd/{tree}", [sys.executable, "-IS", __file__, *sys.argv[1:], _SEALED], {})


def main() -> None:
    """Run the exec program."""
    if sys.argv[-1] != _SEALED:
        _execute_sealed()
    from shim.own_exec.program import Program, accept_server  # noqa: PLC0415 - only the sealed process needs it

    Program(accept_server() if sys.argv[1] == LISTEN else int(sys.argv[1])).run()


if __name__ == "__main__":
    main()

"""The program that joins containers: `python __main__.py DESCRIPTOR`, a socket to the server.

With `listen` instead, systemd hands over a listening socket, and the program accepts the server there.

It forks for each command (`join`) and reaps its children. The server's own process never enters a namespace.
"""

import os
import sys

# Python is isolated from all packages (-IS). The program needs the package `shim` alone, which holds this file.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from shim.oci_runtime.kernel import clone_tree, forbid_writes
from shim.own_exec import LISTEN

_SEALED = "sealed"
"""Marks, as the last argument, that Python runs from the file that nobody can write."""


def _execute_sealed() -> None:
    """Execute this program by the file of Python on a mount that is read-only, and nowhere to be found.

    A container may reach the file of a process in it by /proc/<pid>/exe, and so the host's Python (CVE-2019-5736).
    """
    opened = os.open("/proc/self/exe", os.O_PATH | os.O_CLOEXEC)
    tree = clone_tree(opened)
    forbid_writes(tree)
    os.execve(f"/proc/self/fd/{tree}", [sys.executable, "-IS", __file__, *sys.argv[1:], _SEALED], {})


def main() -> None:
    """Run the program."""
    if sys.argv[-1] != _SEALED:
        _execute_sealed()
    from shim.own_exec.program import Program, accepted  # noqa: PLC0415 - only where it is needed

    Program(accepted() if sys.argv[1] == LISTEN else int(sys.argv[1])).run()


if __name__ == "__main__":
    main()

"""The program that joins containers: `python __main__.py DESCRIPTOR`, a socket to the server.

With `listen` in its place, systemd has handed over a socket on which the server is to be accepted.

It forks for each command (`join`), and waits for what it has forked. The server's own process never enters a namespace.
"""

import fcntl
import os
import sys

# Python is isolated from all packages (-IS). The program needs the package `shim` alone, which holds this file.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

LISTEN = "listen"

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def _execute_sealed_copy() -> None:
    """Execute this program by a copy of Python in memory that nobody can change.

    A container may reach the file of a process in it by /proc/<pid>/exe, and so the host's Python (CVE-2019-5736).
    """
    with open("/proc/self/exe", "rb") as file:
        content = file.read()
    copy = os.memfd_create("pydockershim-exec", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    written = 0
    while written < len(content):
        written += os.write(copy, memoryview(content)[written:])
    fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _SEALS)
    os.execve(f"/proc/self/fd/{copy}", [sys.executable, "-IS", __file__, *sys.argv[1:]], {})


def main() -> None:
    """Run the program."""
    if not os.readlink("/proc/self/exe").startswith("/memfd:"):
        _execute_sealed_copy()
    from shim.own_exec.program import Program, accepted  # noqa: PLC0415 - only where it is needed

    Program(accepted() if sys.argv[1] == LISTEN else int(sys.argv[1])).run()


if __name__ == "__main__":
    main()

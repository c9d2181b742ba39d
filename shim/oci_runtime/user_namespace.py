"""The two user namespaces of a container: the pod's, and a temporary namespace that maps the ids of mounts.

It imports little, because the program starts anew for each container.
"""

from __future__ import annotations

import os

from shim.oci_runtime import json_text, kernel
from shim.oci_runtime.order import OrderError

TYPE_CHECKING = False  # importing typing takes as long as this whole package
if TYPE_CHECKING:
    from shim.oci_runtime.order import UserNamespace

SPARE_ID = 4294901760
"""The id on disk of the host's root in the layers of a container.

Docker needs a mapped id to create files in the container's root (`docker cp`). No image has files of this id, and in
the container they belong to nobody.
"""

_START_TIME = 19
"""Index of the field in /proc/<pid>/stat after the command's name (proc_pid_stat(5))."""


def mapping_of(wanted: UserNamespace, *, spare: bool = True) -> int:
    """Return a descriptor of a new user namespace that maps ids like the pod's, for mounts; `spare` adds SPARE_ID.

    The kernel takes a mount's mapping only from a user namespace. A temporary process creates it.
    """
    ready, entered = os.pipe()
    hold, release = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(release)
        try:
            kernel.unshare(kernel.CLONE_NEWUSER)
            os.write(entered, b"x")
            os.read(hold, 1)
        finally:
            os._exit(0)
    os.close(entered)
    os.close(hold)
    try:
        if not os.read(ready, 1):
            raise OSError("cannot create a user namespace: see user.max_user_namespaces (sysctl)")
        for name, first, count in (("uid_map", wanted.uid, wanted.uids), ("gid_map", wanted.gid, wanted.gids)):
            with open(f"/proc/{child}/{name}", "wb") as table:
                table.write(b"0 %d %d\n" % (first, count) + (b"%d 0 1\n" % SPARE_ID if spare else b""))
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready)
        os.close(release)
        os.waitpid(child, 0)


class Pod:
    """The namespaces that a container joins."""

    def __init__(self, *, users: int, has_network_of_host: bool) -> None:
        self.users = users
        """Descriptor of the user namespace; programs that are executed later inherit it."""
        self.has_network_of_host = has_network_of_host


def pod_of(wanted: UserNamespace, *, state_root: str) -> Pod:
    """Return the namespaces of a pod's pause container. Raise OrderError if it does not run.

    `state_root` is runc's directory of containers. The start time detects a pid that was reused since runc wrote its
    state, and the mapping verifies the namespace. All files are read through one descriptor of the process's directory,
    so a later process with the same pid is never read.
    """
    path = f"{state_root}/{wanted.pause}/state.json"
    try:
        with open(path, "rb") as file:
            state = json_text.read(file.read())
        pid, started = int(state["init_process_pid"]), int(state["init_process_start"])
        process = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return _pod(process, wanted, started=started)
        finally:
            os.close(process)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OrderError(f"the pause container {wanted.pause} of its pod does not run: {error}") from error


def _pod(process: int, wanted: UserNamespace, *, started: int) -> Pod:
    if int(_read(process, "stat").rpartition(b")")[2].split()[_START_TIME]) != started:
        raise OrderError(f"the pause container {wanted.pause} of its pod has exited")
    for name, first, count in (("uid_map", wanted.uid, wanted.uids), ("gid_map", wanted.gid, wanted.gids)):
        if _read(process, name).split() != [b"0", b"%d" % first, b"%d" % count]:
            raise OrderError(f"the user namespace of its pod has a different {name} than ordered")
    network = os.stat("ns/net", dir_fd=process).st_ino
    users = os.open("ns/user", os.O_RDONLY, dir_fd=process)
    os.set_inheritable(users, True)
    return Pod(users=users, has_network_of_host=network == os.stat("/proc/self/ns/net").st_ino)


def _read(process: int, name: str) -> bytes:
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=process), "rb") as file:
        return file.read()

"""`create` of a container that continues from a checkpoint: runs `runc restore` on the files that the server prepared.

The processes run when `create` ends. The calling shell script skips `start`, which runc would refuse.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from shim.base import proc
from shim.oci_runtime import diff, kernel, rights
from shim.oci_runtime.create import read_json, replace_json
from shim.oci_runtime.order import OrderError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shim.oci_runtime.order import Json, Restore

IMAGES = "checkpoint"
DIFF = "rootfs-diff.tar"
SPEC = "spec.dump"
"""Name of the checkpoint's OCI configuration in the directory of a restore, like IMAGES and DIFF."""

_OPTIONS = ("--file-locks", "--ext-unix-sk")
_LOG_BYTES = 64 << 10
_ERRORS_SHOWN = 3
_CONFIGURATION = "org.criu.config"
"""The annotation that names a file of criu options for runc."""


def restore(ordered: Restore, *, words: Sequence[str], verb_at: int, bundle: str, runtime: str) -> None:
    """Restore the container of a bundle. `words` is the command line of `runc create`, with the verb at `verb_at`.

    Raise OrderError with criu's errors if criu fails, or OSError.
    """
    if not os.path.isdir(f"{ordered.directory}/{IMAGES}"):
        raise OrderError("its checkpoint has been used: a container continues from a checkpoint only once")
    path = f"{bundle}/config.json"
    config = read_json(path)
    rights.check(read_json(f"{ordered.directory}/{SPEC}"), config)
    root = os.path.join(bundle, config["root"]["path"])
    try:
        diff.apply(f"{ordered.directory}/{DIFF}", root)
    except tarfile.TarError as error:
        raise OrderError(f"the changed files of its checkpoint: {error}") from error
    if config["root"].get("readonly"):
        _make_read_only(root)
    logs = f"{ordered.directory}/logs"
    os.makedirs(logs, mode=0o700, exist_ok=True)
    options = [*_OPTIONS, "--image-path", f"{ordered.directory}/{IMAGES}", "--work-path", logs]
    # With the annotation, runc ignores the administrator's options for criu (/etc/criu/runc.conf).
    configuration = f"{ordered.directory}/criu.conf"
    Path(configuration).write_text("tcp-close\n")
    config["annotations"] = {**(config.get("annotations") or {}), _CONFIGURATION: configuration}
    replace_json(path, config)
    # criu does not restore an oom_score_adj of 0, so the processes inherit the value.
    Path("/proc/self/oom_score_adj").write_text(str(config["process"].get("oomScoreAdj", 0)))
    _reserve_pids(config, ordered.highest_pid)
    found = shutil.which(runtime)
    if found is None:
        raise OrderError(f"{runtime} is not in the PATH of containerd's shim")
    command = [found, *words[:verb_at], "restore", "--detach", *options, *words[verb_at + 1 :]]
    done = subprocess.run(command, check=False, env={**os.environ, "PATH": ordered.path})
    if done.returncode != 0:
        reason = criu_errors(f"{logs}/restore.log") or "criu has written no error"
        raise OrderError(f"restore from its checkpoint: {reason}")
    shutil.rmtree(ordered.directory, ignore_errors=True)  # the container's memory; the server removes what is left


def _reserve_pids(config: Json, highest: int) -> None:
    """In a pid namespace that the container joins, let new processes have ids above `highest` only.

    Otherwise the processes of a container that is restored first take ids of those that are restored later.
    """
    joined = next((each.get("path") for each in config["linux"]["namespaces"] if each["type"] == "pid"), None)
    if not joined:
        return
    with open("/proc/self/ns/pid", "rb") as own, open(joined, "rb") as namespace:
        kernel.set_namespace(namespace.fileno(), kernel.CLONE_NEWPID)  # of new children
        child = os.fork()
        if child == 0:
            os._exit(_raise_last_pid(highest))
        _, status = os.waitpid(child, 0)
        kernel.set_namespace(own.fileno(), kernel.CLONE_NEWPID)
    if status:
        raise OrderError(f"{joined}: reserve process ids: {os.strerror(os.waitstatus_to_exitcode(status))}")


def _raise_last_pid(highest: int) -> int:
    """Let the next process in this process's pid namespace have an id above `highest`; return an errno."""
    try:
        path = Path("/proc/sys/kernel/ns_last_pid")
        if int(path.read_bytes()) < highest:
            path.write_text(str(highest))
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _make_read_only(root: str) -> None:
    """Make the root read-only in a mount namespace of this process, because criu keeps the mount as it is."""
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_SLAVE)
    kernel.mount(root, root, flags=kernel.MS_BIND | kernel.MS_REC)
    kernel.mount("none", root, flags=kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY)


def criu_errors(log: str) -> str:
    """Return the errors in a log of criu; empty if there are none."""
    errors = [line.partition(b"Error ")[2] for line in proc.lines(end_of(log)) if b"Error " in line]
    return "criu: " + "; ".join(each.decode(errors="replace") for each in errors[:_ERRORS_SHOWN]) if errors else ""


def end_of(log: str) -> bytes:
    """Return the end of a log; empty if it is missing."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
            return file.read()
    except FileNotFoundError:
        return b""

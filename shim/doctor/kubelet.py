"""How the kubelet of this node is configured, as far as it concerns the runtime."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from shim.base.atomic_files import open_regular
from shim.base.proc import value_of

_PROC = Path("/proc")
_CONFIG_BYTES = 1 << 20
"""How much of a configuration file is read; one of the kubelet has some thousand bytes."""

_FIELD = re.compile(rb"""^[\s{,]*["']?failCgroupV1["']?\s*:\s*["']?(true|false)\b""", re.MULTILINE)
"""Read without a parser of YAML, which this program has for credentials alone; fits JSON as well."""


def accepts_cgroup_v1(kubelet_root_dir: Path, *, proc: Path = _PROC) -> str:
    """Return which flag or file lets the kubelet start with control groups of version 1; empty where none does.

    The flags and files are those of the kubelet that runs, else kubeadm's file in `kubelet_root_dir`.
    """
    running = _running(proc)
    if running is None:
        files = [(str(kubelet_root_dir / "config.yaml"), kubelet_root_dir / "config.yaml")]
        return _accepting(files)
    process, arguments = running
    if value := _flag(arguments, "fail-cgroupv1"):
        return "--fail-cgroupv1=false" if value == "false" else ""
    # By the root of the process: a kubelet may have another file system than we.
    return _accepting([(path, process / "root" / path.lstrip("/")) for path in _files(process, arguments)])


def _running(proc: Path) -> tuple[Path, Sequence[str]] | None:
    """Return directory and arguments of the kubelet of this node; those of nodes in containers have their own ids."""
    ours = _namespace(proc / "self")
    for process in proc.iterdir():
        if not process.name.isdecimal():
            continue
        try:
            arguments = os.fsdecode((process / "cmdline").read_bytes()).split("\0")
            if Path(arguments[0]).name == "kubelet" and _namespace(process) == ours and _is_of_our_user(process):
                return process, arguments
        except OSError:  # it has ended
            continue
    return None


def _namespace(process: Path) -> str:
    return str((process / "ns/pid").readlink())


def _is_of_our_user(process: Path) -> bool:
    """Whether the user of a process is ours: any other user may name a program, and files for us to read, like this."""
    return value_of((process / "status").read_bytes(), b"Uid").split()[:1] == [b"%d" % os.getuid()]


def _flag(arguments: Sequence[str], name: str) -> str:
    """Return the last value of a flag, which is given as `--name=value` or `--name value`."""
    found = ""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        key, equals, value = argument.partition("=")
        if key == f"--{name}":
            found = value if equals else following
    return found


def _files(process: Path, arguments: Sequence[str]) -> Iterator[str]:
    """Yield the configuration file and the drop-ins, of which the last one wins."""
    if config := _flag(arguments, "config"):
        yield config
    if drop_ins := _flag(arguments, "config-dir"):
        try:
            names = sorted(path.name for path in (process / "root" / drop_ins.lstrip("/")).iterdir())
        except OSError:
            return
        yield from (f"{drop_ins}/{name}" for name in names if name.endswith(".conf"))


def _accepting(files: Sequence[tuple[str, Path]]) -> str:
    accepting = ""
    for name, path in files:
        try:
            with open_regular(path) as file:
                found = _FIELD.search(file.read(_CONFIG_BYTES))
        except OSError:
            continue
        if found is not None:
            accepting = f"failCgroupV1: false in {name}" if found[1] == b"false" else ""
    return accepting

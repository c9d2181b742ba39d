"""Isolation of the integration tests: they run in namespaces of their own, in which everything ends with them.

Inside, a test run is process 1's only child and sees a machine of its own: an empty /run (so no Docker of the
user's), copies-on-write of /etc, /usr/libexec and /var/lib, a network with one uplink, a host name, no route to the
world.
Private daemons on the machine itself would not do: a second dockerd deletes or renumbers docker0 and
rewrites the machine's iptables rules, and a killed test run leaves containers, mounts and namespaces behind. Here the
kernel removes all of that when process 1 ends, however it ends.

Only control groups are shared with the machine. They all lie below one parent, which goes last.

Where systemd makes the control groups of containers it has to know their processes by their ids. Such a run has no
process 1 of its own, so what it leaves stays: it is for a machine that ends with it (`integration.vm --systemd`).
"""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from types import FrameType

import msgspec

from integration.node import control_groups
from integration.node.commands import NodeError, exit_status, run
from integration.node.control_groups import CgroupDriver
from integration.node.packages import Unpacked

HOME = Path("/run/node")
"""Directory for everything the node writes; memory, or a disk for measurements."""

NODE_FILE = HOME / "node.json"
"""Description of the node, as a Node."""

_serial = count()

HOST_NAME = "node"
NODE_ADDRESSES = ("192.0.2.2/24", "2001:db8::2/64")
OUTSIDE_ADDRESSES = ("192.0.2.1/24", "2001:db8::1/64")
OUTSIDE = HOME / "outside"
"""Network namespace of another host, on the other end of the node's eth0: for `nsenter --net=` and the like.

A link to a descriptor of the first process, not a mount, which would be one more in every list of pinned namespaces.
"""

_NEWNS, _NEWUTS, _NEWIPC, _NEWPID, _NEWNET = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_SYSTEMD = Path("/run/systemd")
_SHARE_OF_VM = Path("/disk/share")
"""There in an emulated machine (`integration.vm`)."""
_COMMAND_SECONDS = 60
# Settings of the user that would lead Docker clients and daemons out of the namespaces.
_UNSET = ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY", "DOCKER_API_VERSION")
_UNSET_SUFFIX = "_proxy"

_libc = ctypes.CDLL(None, use_errno=True)


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """What was prepared for the tests; what is newer may be None, for the reason that stands beside it."""

    stable: Unpacked
    newer: Unpacked | None
    newer_missing: str
    on_demand: dict[str, Unpacked]
    """Engines by name, of those that not every run needs."""
    tools: Unpacked
    busybox: Path
    monitoring: Unpacked
    log_agent: Unpacked
    shells: Unpacked
    podman: Unpacked
    kubectl: Path
    newer_kubectl: Path | None
    newer_kubectl_missing: str
    newer_plugins: Unpacked | None
    newer_plugins_missing: str
    older_plugins: Unpacked | None
    older_plugins_missing: str
    criu: Unpacked | None
    criu_missing: str
    cgroup_driver: CgroupDriver
    cgroup_parent: str


def this_node() -> Node | None:
    """Return the description of the isolated node we run on, None outside of one."""
    try:
        return msgspec.json.decode(NODE_FILE.read_bytes(), type=Node, dec_hook=lambda kind, text: kind(text))
    except FileNotFoundError:
        return None


def new_home(name: str) -> Path:
    """Return a path below HOME, not made, that was never used before: a fixture may be made again after a failure."""
    return HOME / f"{name}-{os.getpid()}-{next(_serial)}"


def run_isolated(command: Sequence[str], *, node: Node, on_disk: bool = False) -> int:
    """Run a command in isolation and return its exit status (128 + signal number when it was killed).

    SIGTERM and SIGHUP ask the command to finish as Ctrl-C does. `on_disk` puts the engines' data on the disk
    of the temporary directory instead of into memory.
    """
    if node.cgroup_driver == "systemd" and not (_SYSTEMD / "system").is_dir():
        raise NodeError(
            "--systemd: the first process here is not systemd; integration.vm --systemd boots a machine with it"
        )
    control_groups.sweep()
    disk = Path(tempfile.mkdtemp(prefix="pydockershim-test-", dir="/var/tmp")) if on_disk else None
    if node.cgroup_driver == "cgroupfs":
        # Only children enter a new PID namespace; we ourselves stay outside, to clean up after all of them.
        _unshare(_NEWPID)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _become_init(command, node=node, disk=disk)
    try:
        return _wait_init(child)
    finally:
        control_groups.remove(node.cgroup_parent)
        if disk is not None:
            shutil.rmtree(disk)


def _wait_init(child: int) -> int:
    def forward(number: int, _frame: FrameType | None) -> None:
        os.kill(child, number)

    # Ctrl-C comes from the terminal to every process of the group, the tests included.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)
    _, status = os.waitpid(child, 0)
    return exit_status(os.waitstatus_to_exitcode(status))


# --- inside -----------------------------------------------------------------------------------------------


def _become_init(command: Sequence[str], *, node: Node, disk: Path | None) -> None:
    code = 125
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # as process 1 is in any case
        # Ctrl-C is for the command. A handler that does nothing is reset at exec; SIG_IGN would be inherited.
        signal.signal(signal.SIGINT, lambda _number, _frame: None)
        _unshare(_NEWNS | _NEWUTS | _NEWIPC | _NEWNET)
        outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        _unshare(_NEWNET)
        _furnish(disk, driver=node.cgroup_driver)
        OUTSIDE.symlink_to(f"/proc/{os.getpid()}/fd/{outside}")
        _connect()
        NODE_FILE.write_bytes(msgspec.json.encode(node, enc_hook=str))
        code = _run_and_reap(command)
    except BaseException:  # noqa: BLE001  a fork must never return into the program it was forked from
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run_and_reap(command: Sequence[str]) -> int:
    environment = {
        key: value for key, value in os.environ.items() if key not in _UNSET and not key.lower().endswith(_UNSET_SUFFIX)
    }
    environment |= {"HOME": str(HOME / "home"), "DOCKER_CONFIG": str(HOME / "home/.docker")}
    child = subprocess.Popen(command, env=environment)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        os.kill(child.pid, signal.SIGINT)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    while True:
        pid, status = os.waitpid(-1, 0)  # also collects orphans, containerd's shims among them
        if pid == child.pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            return exit_status(child.returncode)


def _furnish(disk: Path | None, *, driver: CgroupDriver) -> None:
    _mount("--make-rprivate", "/")
    _mount("-t", "proc", "proc", "/proc")
    _empty_run(driver)
    HOME.mkdir()
    if disk is not None:
        _mount("--bind", str(disk), str(HOME))
    (HOME / "home/.docker").mkdir(parents=True)
    _renew_sys()
    for directory in ("/etc", "/usr/libexec", "/var/lib"):
        _copy_on_write(directory)
    _name_hosts()
    # Pods with mount propagation need shared mounts, as systemd makes them; shared within these namespaces only.
    _mount("--make-rshared", "/")


def _empty_run(driver: CgroupDriver) -> None:
    stash = Path("/mnt")
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(stash))
    if driver == "systemd":
        (stash / _SYSTEMD.name).mkdir()
        _mount("--bind", str(_SYSTEMD), str(stash / _SYSTEMD.name))
    _mount("--no-mtab", "--move", str(stash), "/run")  # its table of mounts is in /run


def _renew_sys() -> None:
    # sysfs shows the network of the namespace it was mounted in.
    stash = HOME / "cgroup"
    stash.mkdir()
    _mount("--rbind", str(_CGROUP_ROOT), str(stash))
    _mount("-t", "sysfs", "sysfs", "/sys")
    _mount("--move", str(stash), str(_CGROUP_ROOT))
    stash.rmdir()
    if _SHARE_OF_VM.is_dir():
        # Docker finds AppArmor there, and loads its profile into the kernel: into that of an emulated machine alone.
        _mount("-t", "securityfs", "securityfs", "/sys/kernel/security")


def _copy_on_write(directory: str) -> None:
    # Always in memory: an overlay's upper directory must not itself lie on one, as a disk's may.
    changes = Path("/run/changes", directory.strip("/").replace("/", "-"))
    upper, work = changes / "upper", changes / "work"
    upper.mkdir(parents=True)
    work.mkdir()
    options = f"lowerdir={directory},upperdir={upper},workdir={work}"
    _mount("-t", "overlay", "-o", options, "overlay", directory)


def _name_hosts() -> None:
    socket.sethostname(HOST_NAME)
    files = {
        "hostname": f"{HOST_NAME}\n",
        "hosts": f"127.0.0.1 localhost\n::1 localhost\n{NODE_ADDRESSES[0].partition('/')[0]} {HOST_NAME}\n",
        "resolv.conf": f"nameserver {OUTSIDE_ADDRESSES[0].partition('/')[0]}\nsearch node.test\n",
    }
    for name, content in files.items():
        path = Path("/etc", name)
        path.unlink(missing_ok=True)  # may be a link into the machine's /run
        path.write_text(content)


def _connect() -> None:
    """Give the node an uplink, and the host at its other end, which answers for an unreachable world.

    Forwarding is on before any dockerd starts: a dockerd that switches it on itself also drops all
    forwarded traffic, and with it traffic between pods.
    """
    for setting in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
        Path("/proc/sys/net", setting).write_text("1")
    _ip("link set lo up")
    _ip(f"link add eth0 type veth peer name eth0 netns {OUTSIDE}")
    _address(NODE_ADDRESSES, gateways=OUTSIDE_ADDRESSES)
    there = ["nsenter", f"--net={OUTSIDE}"]
    _ip("link set lo up", prefix=there)
    _address(OUTSIDE_ADDRESSES, prefix=there)
    # A refusal at once instead of a connection attempt that waits for its timeout.
    for family in ("-4", "-6"):
        _ip(f"{family} route add unreachable default", prefix=there)
    settings = {"ip_forward": 1, "icmp_ratelimit": 0}  # each refusal counts: a lookup without one waits for seconds
    for name, value in settings.items():
        run([*there, "sh", "-c", f"echo {value} >/proc/sys/net/ipv4/{name}"], timeout=_COMMAND_SECONDS)


def _address(addresses: Sequence[str], *, gateways: Sequence[str] = (), prefix: Sequence[str] = ()) -> None:
    for address in addresses:
        _ip(f"address add {address} dev eth0 {'nodad' if ':' in address else ''}", prefix=prefix)
    _ip("link set eth0 up", prefix=prefix)
    for gateway in gateways:
        _ip(f"route add default via {gateway.partition('/')[0]}", prefix=prefix)


def _ip(arguments: str, *, prefix: Sequence[str] = ()) -> None:
    run([*prefix, "ip", *arguments.split()], timeout=_COMMAND_SECONDS)


def _mount(*arguments: str) -> None:
    run(["mount", *arguments], timeout=_COMMAND_SECONDS)


def _unshare(flags: int) -> None:
    if _libc.unshare(flags) != 0:
        cause = os.strerror(ctypes.get_errno())
        raise NodeError(f"make namespaces {flags:#x}: {cause} (the integration tests need root)")

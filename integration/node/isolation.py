"""Isolation of the integration tests in namespaces, whose end is the end of everything inside.

Inside, a test run is the only child of process 1, and sees a separate machine: an empty /run without the user's Docker,
copies-on-write of /etc, /usr/libexec and /var/lib, a network with one uplink, a host name, and no route to the world.

Private daemons on the machine itself would not work: a second dockerd deletes or renumbers docker0 and rewrites the
machine's iptables rules, and a killed test run leaves containers, mounts and namespaces behind. Here the kernel removes
all of them when process 1 ends, however it ends.

Only cgroups are shared with the machine. They all lie below one parent, which is removed last.

With the systemd cgroup driver, systemd must know the processes of containers by their pids. Such a run has no PID
namespace, so its leftovers stay: use it on a machine that ends with the run (`integration.vm --systemd`).
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
"""Directory of all files that the node writes; in memory, or on disk for measurements."""

NODE_FILE = HOME / "node.json"
"""Description of the node, as a Node."""

_serial = count()

HOST_NAME = "node"
NODE_ADDRESSES = ("192.0.2.2/24", "2001:db8::2/64")
OUTSIDE_ADDRESSES = ("192.0.2.1/24", "2001:db8::1/64")
OUTSIDE = HOME / "outside"
"""Network namespace of another host, at the other end of the node's eth0, for `nsenter --net=`.

It is a link to a descriptor of process 1; a mount would appear in every list of pinned namespaces.
"""

_NEWNS, _NEWUTS, _NEWIPC, _NEWPID, _NEWNET = 0x20000, 0x4000000, 0x8000000, 0x20000000, 0x40000000
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_SYSTEMD = Path("/run/systemd")
_SHARE_OF_VM = Path("/disk/share")
"""Exists in an emulated machine (`integration.vm`)."""
_COMMAND_SECONDS = 60
# Variables that would lead Docker clients and daemons out of the namespaces.
_UNSET = ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY", "DOCKER_API_VERSION")
_UNSET_SUFFIX = "_proxy"

_libc = ctypes.CDLL(None, use_errno=True)


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """The node prepared for the tests; optional parts may be None, with the reason in a second field."""

    stable: Unpacked
    newer: Unpacked | None
    newer_missing: str
    newer_runc: Unpacked | None
    """runc of the newer engines, if it was fetched; otherwise they use the stable engine's."""
    on_demand: dict[str, Unpacked]
    """Fetched engines, of those that only some runs need, by name."""
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
    """Return the description of the isolated node of this process, None outside isolation."""
    try:
        return msgspec.json.decode(NODE_FILE.read_bytes(), type=Node, dec_hook=lambda kind, text: kind(text))
    except FileNotFoundError:
        return None


def new_home(name: str) -> Path:
    """Return an unused path below HOME, which does not exist yet; a fixture may be set up again after a failure."""
    return HOME / f"{name}-{os.getpid()}-{next(_serial)}"


def run_isolated(command: Sequence[str], *, node: Node, on_disk: bool = False) -> int:
    """Run a command in isolation and return its exit status (128 + signal number if it was killed).

    SIGTERM and SIGHUP interrupt the command as Ctrl-C does. `on_disk` puts the engines' data on the disk of the
    temporary directory instead of into memory.
    """
    if node.cgroup_driver == "systemd" and not (_SYSTEMD / "system").is_dir():
        raise NodeError(
            "--systemd: process 1 of this machine is not systemd; integration.vm --systemd boots a machine with it"
        )
    control_groups.sweep()
    disk = Path(tempfile.mkdtemp(prefix="pydockershim-test-", dir="/var/tmp")) if on_disk else None
    if node.cgroup_driver == "cgroupfs":
        # Only children enter a new PID namespace; this process stays outside, to clean up afterwards.
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

    # Ctrl-C reaches every process of the terminal's group, the tests included.
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
        pid, status = os.waitpid(-1, 0)  # also reaps orphans, such as containerd-shims
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
    # Pods with mount propagation need shared mounts, as systemd makes them; these are shared within the namespaces
    # only.
    _mount("--make-rshared", "/")


def _empty_run(driver: CgroupDriver) -> None:
    stash = Path("/mnt")
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(stash))
    if driver == "systemd":
        (stash / _SYSTEMD.name).mkdir()
        _mount("--bind", str(_SYSTEMD), str(stash / _SYSTEMD.name))
    _mount("--no-mtab", "--move", str(stash), "/run")  # mount's own table is in /run


def _renew_sys() -> None:
    # sysfs shows the network namespace in which it was mounted.
    stash = HOME / "cgroup"
    stash.mkdir()
    _mount("--rbind", str(_CGROUP_ROOT), str(stash))
    _mount("-t", "sysfs", "sysfs", "/sys")
    _mount("--move", str(stash), str(_CGROUP_ROOT))
    stash.rmdir()
    if _SHARE_OF_VM.is_dir():
        # Docker finds AppArmor there, and loads its profile into the kernel, which must be the emulated machine's.
        _mount("-t", "securityfs", "securityfs", "/sys/kernel/security")


def _copy_on_write(directory: str) -> None:
    # Always in memory: the upper directory must not lie on an overlay, as a disk's may.
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
    """Give the node an uplink to a second host, which rejects all other addresses.

    Forwarding is on before any dockerd starts: a dockerd that enables it also drops all forwarded traffic, and with it
    traffic between pods.
    """
    for setting in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
        Path("/proc/sys/net", setting).write_text("1")
    _ip("link set lo up")
    _ip(f"link add eth0 type veth peer name eth0 netns {OUTSIDE}")
    _address(NODE_ADDRESSES, gateways=OUTSIDE_ADDRESSES)
    there = ["nsenter", f"--net={OUTSIDE}"]
    _ip("link set lo up", prefix=there)
    _address(OUTSIDE_ADDRESSES, prefix=there)
    # Connection attempts are rejected at once instead of timing out.
    for family in ("-4", "-6"):
        _ip(f"{family} route add unreachable default", prefix=there)
    settings = {"ip_forward": 1, "icmp_ratelimit": 0}  # unlimited: a lookup without an ICMP error waits for seconds
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
        raise NodeError(f"create namespaces {flags:#x}: {cause} (the integration tests need root)")

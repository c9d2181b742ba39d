"""A cluster of one node: upstream's etcd and control plane, and a kubelet with the server's socket.

Everything runs in isolation (`integration.node.isolation`), with its network and cgroups and an empty /var/log. Kernel
settings that the kubelet changes for the whole machine are restored.
"""

import http.client
import os
import secrets
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec

from integration.conformance.binaries import Binaries
from integration.conformance.kubectl import Kubectl
from integration.conformance.logind import Logind
from integration.conftest import Served
from integration.node.commands import NodeError, run
from integration.node.control_groups import CgroupDriver
from integration.node.daemon import Daemon
from integration.node.isolation import NODE_ADDRESSES, Node
from integration.node.mounts import unmount_all

NODE_NAME = "node"
ADDRESS = NODE_ADDRESSES[0].partition("/")[0]
SERVICES = "10.96.0.0/16"
DOMAIN = "cluster.local"
_BACK_OFF_SINCE = (1, 32)
"""First version of kubelets with KubeletCrashLoopBackOffMax."""
_GATES = {
    "ImageVolume": ((1, 31), (1, 35)),
    "KubeletCgroupDriverFromCRI": ((1, 28), (1, 31)),
    "SidecarContainers": ((1, 28), (1, 29)),
}
"""Features that scenarios need: the first version of Kubernetes that has each, and the first that enables it."""
SHUTDOWN_SECONDS = 20
"""How long a node shutdown waits for pods. With EventedPLEG their termination may begin 10 s late; see the page."""
DISK_MIB = 256
"""Size of the kubelet's disk: small, so that a pod can fill it."""
LOG_FILE_BYTES = 20 << 10
"""Size at which a container's log is rotated."""

_API = "https://127.0.0.1:6443"
_START_SECONDS = 180
_STOP_SECONDS = 60
_CALL_SECONDS = 60
_ISSUER = f"https://kubernetes.default.svc.{DOMAIN}"
_TUNABLES = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""Settings below /proc/sys that a kubelet changes. They belong to the machine, not to a namespace."""
_CGROUPS = Path("/sys/fs/cgroup")


def https_call(
    address: str, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """Return status and body of a call; does not verify the certificate, which is self-signed."""
    host, _, port = address.removeprefix("https://").partition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(host, int(port), timeout=_CALL_SECONDS, context=context)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


class Api:
    """A client of the API server; a kubectl process for each check of a pod would be too slow."""

    def __init__(self, token: str, address: str = _API) -> None:
        self._address = address
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}

    def get(self, path: str) -> Any:
        """Return an object or a list, None if it does not exist."""
        status, body = self.raw(path)
        if status == http.HTTPStatus.NOT_FOUND:
            return None
        if status != http.HTTPStatus.OK:
            raise NodeError(f"ask the API server for {path}: {status} {body[:500].decode(errors='replace')}")
        return msgspec.json.decode(body)

    def post(self, path: str) -> Any:
        """Return the answer to a POST without a body."""
        status, body = https_call(self._address, path, method="POST", headers=self._headers)
        if status != http.HTTPStatus.OK:
            raise NodeError(f"post {path}: {status} {body[:500].decode(errors='replace')}")
        return msgspec.json.decode(body)

    def raw(self, path: str) -> tuple[int, bytes]:
        """Return status and body of a GET."""
        return https_call(self._address, path, headers=self._headers)

    def ready(self) -> bool:
        """Return whether the API server is ready."""
        try:
            return self.raw("/readyz")[0] == http.HTTPStatus.OK
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class ContainerRuntime:
    """The CRI server of a cluster's node."""

    socket: Path
    cgroup_driver: CgroupDriver
    clear: Callable[[], None]
    """Removes all pods. Pods keep files of volumes open, and the server keeps their logs open."""


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """The control plane and the kubelet of a node: its clients, and the parts of its node."""

    home: Path
    binaries: Binaries
    kubectl: Kubectl
    api: Api
    kubelet: Daemon
    logind: Logind
    gates: Mapping[str, bool]

    @property
    def manifests(self) -> Path:
        """Directory of static pods."""
        return self.home / "manifests"

    @property
    def disk(self) -> Path:
        """The kubelet's root directory, on a separate file system."""
        return self.home / "kubelet"

    @property
    def pod_logs(self) -> Path:
        """The kubelet's directory of pod logs."""
        return Path("/var/log/pods")

    @property
    def kubelet_version(self) -> tuple[int, int]:
        """Major and minor version of the kubelet."""
        return minor_of(self.binaries.programs["kubelet"].version)

    def node(self) -> dict[str, Any]:
        """Return the Node object."""
        return dict(self.api.get(f"/api/v1/nodes/{NODE_NAME}") or {})

    def ready(self) -> bool:
        """Return whether the node is Ready."""
        return condition(self.node(), "Ready") == "True"

    def start_kubelet(self) -> None:
        """Start the kubelet, and wait until it answers."""
        self.kubelet.start(ready=kubelet_answers, timeout=_START_SECONDS)


@dataclass(frozen=True, slots=True)
class Cluster(Kubernetes):
    """A cluster whose node has this server."""

    served: Served


def condition(thing: Mapping[str, Any], kind: str) -> str:
    """Return the status of a condition of an object, empty if it has none."""
    found = [item["status"] for item in thing.get("status", {}).get("conditions", ()) if item["type"] == kind]
    return str(found[0]) if found else ""


@contextmanager
def cluster(node: Node, served: Served, binaries: Binaries, *, home: Path, gates: str) -> Iterator[Cluster]:
    """Run a cluster on a server while the block runs; `gates` are feature gates in the format of the kubelet's flag."""

    def clear() -> None:
        served.revive()
        served.clear()

    runtime = ContainerRuntime(served.server.socket, served.engine.cgroup_driver, clear)
    with kubernetes(node, runtime, binaries, home=home, gates=gates) as made:
        parts = {field.name: getattr(made, field.name) for field in fields(made)}
        yield Cluster(**parts, served=served)


@contextmanager
def kubernetes(
    node: Node, runtime: ContainerRuntime, binaries: Binaries, *, home: Path, gates: str = ""
) -> Iterator[Kubernetes]:
    """Run a control plane and a kubelet while the block runs."""
    (home / "manifests").mkdir(parents=True)
    token = secrets.token_hex(16)
    kubeconfig = _write_credentials(home, token)
    logind = Logind(home / "system-bus")
    kubelet = _kubelet(node, runtime, binaries, home=home, gates=parse_gates(gates), logind=logind)
    api = Api(token)
    started: list[Daemon] = []
    run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/var/log"], timeout=_CALL_SECONDS)
    (home / "kubelet").mkdir()
    run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", home / "kubelet"], timeout=_CALL_SECONDS)
    made = Kubernetes(
        home=home,
        binaries=binaries,
        kubectl=Kubectl(binaries["kubectl"], kubeconfig=kubeconfig, home=home),
        api=api,
        kubelet=kubelet,
        logind=logind,
        gates=parse_gates(gates),
    )
    try:
        with tunables_kept():
            for daemon in _control_plane(binaries, home=home):
                daemon.spawn()
                started.append(daemon)
                if daemon.argv[0].endswith("kube-apiserver"):
                    daemon.wait_ready(api.ready, timeout=_START_SECONDS)
            started.append(kubelet)
            made.start_kubelet()
            kubelet.wait_ready(made.ready, timeout=_START_SECONDS)
            yield made
    finally:
        for daemon in reversed(started):
            daemon.stop(timeout=_STOP_SECONDS)
        logind.close()
        runtime.clear()
        unmount_all(home)
        unmount_all(Path("/var/log"))


def parse_gates(text: str) -> dict[str, bool]:
    """Return feature gates as in the kubelet's configuration; raises NodeError for invalid text."""
    found = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if value not in ("true", "false"):
            raise NodeError(f"--gates {text}: {part!r} is not NAME=true or NAME=false")
        found[name] = value == "true"
    return found


# --- the control plane ------------------------------------------------------------------------------------


def _control_plane(binaries: Binaries, *, home: Path) -> Iterator[Daemon]:
    kubeconfig = home / "kubeconfig"
    gates = gates_of_version(binaries.programs["kube-apiserver"].version)
    yield _daemon(binaries["etcd"], home, {"data-dir": home / "etcd", "unsafe-no-fsync": "true"})
    yield _daemon(
        binaries["kube-apiserver"],
        home,
        {
            "etcd-servers": "http://127.0.0.1:2379",
            "advertise-address": ADDRESS,
            "secure-port": 6443,
            "tls-cert-file": home / "api.crt",
            "tls-private-key-file": home / "api.key",
            "cert-dir": home / "api",
            "token-auth-file": home / "tokens.csv",
            "authorization-mode": "Node,RBAC",
            "allow-privileged": "true",
            # fields of a disabled alpha feature are dropped
            "feature-gates": ",".join(f"{name}=true" for name in gates),
            "service-cluster-ip-range": SERVICES,
            "service-account-issuer": _ISSUER,
            "service-account-key-file": home / "accounts.key",
            "service-account-signing-key-file": home / "accounts.key",
        },
    )
    yield _daemon(
        binaries["kube-controller-manager"],
        home,
        {
            "kubeconfig": kubeconfig,
            "leader-elect": "false",
            "cert-dir": home / "controllers",
            "service-account-private-key-file": home / "accounts.key",
            "root-ca-file": home / "api.crt",
        },
    )
    flags = {"kubeconfig": kubeconfig, "leader-elect": "false", "cert-dir": home / "scheduler"}
    yield _daemon(binaries["kube-scheduler"], home, flags)


def _daemon(program: Path, home: Path, flags: Mapping[str, object], environ: Mapping[str, str] | None = None) -> Daemon:
    words = [f"--{name}={value}" for name, value in flags.items()]
    env = {**os.environ, **(environ or {})}
    return Daemon([program, *words], log=home / f"{program.name}.log", env=env)


def _write_credentials(home: Path, token: str) -> Path:
    """Write keys, tokens and kubeconfigs; return the kubeconfig of the cluster's administrator."""
    nodes = secrets.token_hex(16)
    (home / "tokens.csv").write_text(
        f"{token},admin,admin,system:masters\n{nodes},system:node:{NODE_NAME},node,system:nodes\n"
    )
    run(["openssl", "genrsa", "-out", home / "accounts.key", "2048"], timeout=_CALL_SECONDS)
    names = f"IP:127.0.0.1,IP:{ADDRESS},IP:10.96.0.1,DNS:kubernetes.default.svc"
    subject = ["-subj", "/CN=kube-apiserver", "-addext", f"subjectAltName={names}"]
    kind = ["-newkey", "rsa:2048", "-nodes", "-days", "2"]
    files = ["-keyout", str(home / "api.key"), "-out", str(home / "api.crt")]
    run(["openssl", "req", "-x509", *subject, *kind, *files], timeout=_CALL_SECONDS)
    _write_kubeconfig(home / "kubelet.kubeconfig", home / "api.crt", nodes)
    return _write_kubeconfig(home / "kubeconfig", home / "api.crt", token)


def _write_kubeconfig(path: Path, authority: Path, token: str) -> Path:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "it", "cluster": {"server": _API, "certificate-authority": str(authority)}}],
        "users": [{"name": "it", "user": {"token": token}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "current-context": "it",
    }
    path.write_bytes(msgspec.json.encode(content))
    return path


# --- the kubelet ------------------------------------------------------------------------------------------


def _kubelet(
    node: Node, runtime: ContainerRuntime, binaries: Binaries, *, home: Path, gates: Mapping[str, bool], logind: Logind
) -> Daemon:
    """Return the daemon of a kubelet, not started."""
    make_control_groups(node.cgroup_parent)
    configuration = kubelet_configuration(node, socket=runtime.socket, driver=runtime.cgroup_driver, home=home)
    configuration |= settings_of_version(binaries.programs["kubelet"].version, gates=gates)
    (home / "kubelet.json").write_bytes(msgspec.json.encode(configuration))
    flags = {
        "config": home / "kubelet.json",
        "kubeconfig": home / "kubelet.kubeconfig",
        "root-dir": home / "kubelet",
        "cert-dir": home / "kubelet-certificates",
        "hostname-override": NODE_NAME,
        "node-ip": ADDRESS,
        "v": 2,
    }
    return _daemon(binaries["kubelet"], home, flags, {"DBUS_SYSTEM_BUS_ADDRESS": logind.address})


def make_control_groups(parent: str) -> None:
    """Create a kubelet's root cgroup in every hierarchy; the kubelet expects it."""
    hierarchies = [_CGROUPS] if (_CGROUPS / "cgroup.controllers").exists() else _hierarchies()
    for hierarchy in hierarchies:
        (hierarchy / parent.strip("/")).mkdir(exist_ok=True)
    _fill_cpuset(parent)


def _hierarchies() -> list[Path]:
    return [path for path in _CGROUPS.iterdir() if path.is_dir() and not path.is_symlink() and path.name != "unified"]


def _fill_cpuset(parent: str) -> None:
    """Copy the parent's CPUs and memory nodes to a new cpuset of cgroup v1: without them no process can join it."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        group = _CGROUPS / "cpuset" / parent.strip("/") / name
        if group.exists() and not group.read_text().strip():
            group.write_text((_CGROUPS / "cpuset" / name).read_text())


def settings_of_version(version: str, *, gates: Mapping[str, bool]) -> dict[str, object]:
    """Return the feature gates of a kubelet, and a short restart delay if the version can set it.

    Features that scenarios need are enabled where they are off by default.
    """
    needed = dict.fromkeys(gates_of_version(version), True)
    if minor_of(version) < _BACK_OFF_SINCE:
        return {"featureGates": {**needed, **gates}}
    return {
        "crashLoopBackOff": {"maxContainerRestartPeriod": "2s"},
        "featureGates": {"KubeletCrashLoopBackOffMax": True, **needed, **gates},
    }


def gates_of_version(version: str) -> list[str]:
    """Return the feature gates to enable in a version of Kubernetes, which does not start with unknown gates."""
    return [name for name, (since, by_default) in _GATES.items() if since <= minor_of(version) < by_default]


def minor_of(version: str) -> tuple[int, int]:
    """Return the major and minor version."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def kubelet_configuration(node: Node, *, socket: Path, driver: CgroupDriver, home: Path) -> dict[str, object]:
    """Return a kubelet's configuration: short intervals, and nothing that isolation forbids."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{socket}",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": driver,
        "cgroupRoot": node.cgroup_parent,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,  # a lower value needs CAP_SYS_RESOURCE, which a container may lack
        "clusterDNS": [ADDRESS],
        "clusterDomain": DOMAIN,
        "staticPodPath": str(home / "manifests"),
        "volumePluginDir": str(home / "plugins"),
        "allowedUnsafeSysctls": ["net.core.somaxconn"],
        "seccompDefault": False,
        "syncFrequency": "3s",
        "fileCheckFrequency": "1s",
        "nodeStatusUpdateFrequency": "2s",
        "nodeStatusReportFrequency": "5s",
        "containerLogMaxSize": str(LOG_FILE_BYTES),
        "containerLogMaxFiles": 50,
        "containerLogMonitorInterval": "3s",
        "evictionHard": {"nodefs.available": "30%", "memory.available": "1Mi", "imagefs.available": "0%"},
        "evictionPressureTransitionPeriod": "5s",
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "makeIPTablesUtilChains": False,
        "shutdownGracePeriod": f"{SHUTDOWN_SECONDS}s",
        "shutdownGracePeriodCriticalPods": "2s",
    }


def kubelet_answers() -> bool:
    """Return whether the kubelet of this node reports healthy."""
    connection = http.client.HTTPConnection("127.0.0.1", 10248, timeout=_CALL_SECONDS)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()


@contextmanager
def tunables_kept() -> Iterator[None]:
    """Restore after the block the kernel settings that kubelets change for the whole machine."""
    paths = [path for name in _TUNABLES if (path := Path("/proc/sys", name)).exists()]
    before = {path: path.read_text() for path in paths}
    try:
        yield
    finally:
        for path, value in before.items():
            if path.read_text() != value:
                path.write_text(value)

"""The scenarios of `make conformance` for a kubelet, in a kind node.

Some scenarios are left out: those that stop the kubelet, the server or Docker, for which this folder has separate
tests, and those that need the address and the name server of the cluster in `make conformance`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import docker

from integration.conformance import binaries, cluster, scenarios  # noqa: F401  importing the last fills SCENARIOS
from integration.conformance.kubectl import Kubectl
from integration.conformance.machine import machine_of
from integration.conformance.results import Run
from integration.conformance.runner import run_scenarios
from integration.conformance.scenario import SCENARIOS
from integration.kind.cluster import Cluster
from integration.node.commands import NodeError, run
from integration.node.engines import ENGINES

LEFT_OUT = frozenset(
    {
        "host port leads to a pod",
        "pod of the host network has the nodes address",
        "resolver is configured as the pod asks",
        "names are resolved",
        "pod reaches the api server and has a token for it",
        "events reach a kubelet that asks for them",
        "classes of pods have their control groups",
    }
)
NAME = "node"
"""The scenarios have the Node's name in paths of the API."""
PATCHES = (
    f"kind: InitConfiguration\nnodeRegistration: {{name: {NAME}}}\n",
    f"""\
kind: KubeletConfiguration
allowedUnsafeSysctls: [net.core.somaxconn]
syncFrequency: 3s
fileCheckFrequency: 1s
containerLogMaxSize: "{cluster.LOG_FILE_BYTES}"
containerLogMaxFiles: 50
containerLogMonitorInterval: 3s
crashLoopBackOff: {{maxContainerRestartPeriod: 2s}}
featureGates: {{KubeletCrashLoopBackOffMax: true}}
""",
)
_ADMIN = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: scenarios}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: default, namespace: kube-system}]
"""
_PYTHON = "/opt/pydockershim/bin/python3"
_PROGRAMS = (*binaries.NODE, *binaries.EXTRAS, "kubeadm", "kind")
_GATE = "PodAndContainerStatsFromCRI"
"""Set by packaging/kind/cluster.yaml."""
_NOTE = "in a node of kind, without scenarios that disturb others or need what `make conformance` has around its node"
_SECONDS = 60


@dataclass(frozen=True, slots=True)
class _Server:
    socket: Path


@dataclass(frozen=True, slots=True)
class _Engine:
    api: docker.APIClient
    cgroup_driver: str = "systemd"

    @property
    def version(self) -> str:
        return str(self.api.version()["Version"])


@dataclass(frozen=True, slots=True)
class _Served:
    """The part of `integration.conftest.Served` that these scenarios use."""

    engine: _Engine
    server: _Server


@dataclass(frozen=True, slots=True)
class _Journal:
    """The log of a unit of the node, read as a file."""

    made: Cluster
    container: str
    unit: str

    def read_text(self, **_how: str) -> str:
        words = ["journalctl", "--no-pager", "--output=cat", f"--unit={self.unit}"]
        return self.made.run("docker", "exec", self.container, *words)


@dataclass(frozen=True, slots=True)
class _Kubelet:
    log: _Journal


@dataclass(frozen=True, slots=True)
class _Node:
    """A node for the scenarios, with its directories through the root directory of its process 1."""

    home: Path
    root: Path
    binaries: binaries.Binaries
    served: _Served
    kubectl: Kubectl
    api: cluster.Api
    kubelet: _Kubelet
    gates: dict[str, bool] = field(default_factory=lambda: {_GATE: True})

    @property
    def manifests(self) -> Path:
        return self.root / "etc/kubernetes/manifests"

    @property
    def disk(self) -> Path:
        return self.root / "var/lib/kubelet"

    @property
    def pod_logs(self) -> Path:
        return self.root / "var/log/pods"

    def node(self) -> dict[str, Any]:
        return dict(self.api.get(f"/api/v1/nodes/{NAME}") or {})


def selected() -> str:
    """Return a regular expression for the names of the scenarios that run here."""
    return f"^({'|'.join(_names())})$"


def _names() -> list[str]:
    return [each.name for each in SCENARIOS if not each.alone and each.name not in LEFT_OUT]


def run_in_node(made: Cluster, container: str, *, programs: Path, home: Path, note: str) -> Run:
    """Run the scenarios on the node.

    `home` is a directory with the same path in the node, `note` is a remark about the programs.
    """
    made.kubectl("apply", "-f", "-", stdin=_ADMIN.encode())
    with _node(made, container, programs=programs, home=home) as node:
        cases = run_scenarios(cast("cluster.Cluster", node), only=selected(), say=print)
        engine = node.served.engine
        return Run(
            suite="kubelet",
            version=node.binaries.programs["kubelet"].version,
            gates=f"{_GATE}=true",
            engine=engine_name(engine.api.info(), engine.version),
            docker=engine.version,
            date=datetime.now(UTC).date().isoformat(),
            machine=machine_of(engine.api, python=made.run("docker", "exec", container, _PYTHON, "-V").split()[1]),
            binaries={name: program.version for name, program in node.binaries.programs.items()},
            note="; ".join(part for part in (note, _NOTE) if part),
            cases=cases,
        )


def engine_name(info: Mapping[str, Any], version: str) -> str:
    """Return the name in ENGINES of a Docker with this info and version."""
    in_containerd = any("io.containerd.snapshotter" in value for _, value in info.get("DriverStatus") or ())
    major, minor, *_ = version.split(".")
    found = f"{major}.{minor}" if major == "20" else f"{major}-containerd" if in_containerd else major
    if found not in ENGINES:
        raise NodeError(f"file results of a node: Docker {version} is none of {', '.join(ENGINES)}")
    return found


@contextmanager
def _node(made: Cluster, container: str, *, programs: Path, home: Path) -> Iterator[_Node]:
    details = made.engine.api.inspect_container(container)
    root = Path(f"/proc/{details['State']['Pid']}/root")
    address = details["NetworkSettings"]["Networks"]["kind"]["IPAddress"]
    cidr = made.kubectl("get", "node", NAME, "-o", "jsonpath={.spec.podCIDR}")
    # Scenarios call pods from the node, which is one hop away from here.
    run(["ip", "route", "replace", cidr, "via", address], timeout=_SECONDS)
    token = made.kubectl("create", "token", "default", "-n", "kube-system", "--duration=4h").strip()
    url = made.kubectl("config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}")
    api = docker.APIClient(base_url=f"unix://{root}/run/docker.sock", timeout=_SECONDS)
    kubeconfig = Path(made.environ["KUBECONFIG"])
    found = binaries.find(programs, names=_PROGRAMS)
    try:
        yield _Node(
            home=home,
            root=root,
            binaries=found,
            served=_Served(_Engine(api), _Server(root / "run/cri-dockerd.sock")),
            kubectl=Kubectl(found["kubectl"], kubeconfig=kubeconfig, home=home),
            api=cluster.Api(token, url),
            kubelet=_Kubelet(_Journal(made, container, "kubelet.service")),
        )
    finally:
        api.close()
        run(["ip", "route", "del", cidr, "via", address], timeout=_SECONDS)

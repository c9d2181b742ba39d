"""Plugins' changes of a new container: settings of Docker, orders of the OCI runtime, and refusals."""

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shim.api.nri import nri_pb2 as nri
from shim.api.v1 import api_pb2 as pb
from shim.container.list import list_containers
from shim.domain.errors import FailedPrecondition
from shim.hooks.adjustment import FIELD_SUPPORT, changes_of
from shim.oci_runtime.adjust import CHANGES
from shim.oci_runtime.order import Order, decode
from shim.runtime import Runtime
from tests.fakes.engine import FakeEngine
from tests.hooks.conftest import Connect, replace_config, served
from tests.nri.plugin import arriving, connected
from tests.pods import created, ready_pod
from tests.waits import SECONDS, wait_until

PAGE = Path(__file__).parents[2] / "docs/nri.md"


def adjust(**fields: Any) -> nri.CreateContainerResponse:
    return nri.CreateContainerResponse(adjust=nri.ContainerAdjustment(**fields))


def linux(**fields: Any) -> nri.CreateContainerResponse:
    return adjust(linux=nri.LinuxContainerAdjustment(**fields))


def resources(**fields: Any) -> nri.CreateContainerResponse:
    return linux(resources=nri.LinuxResources(**fields))


def env(key: str, value: str = "") -> nri.KeyValue:
    return nri.KeyValue(key=key, value=value)


def order_of(orders: Path, container: str) -> Order:
    return decode((orders / container).read_bytes(), container=container)


EVERYTHING = {
    "annotations": adjust(annotations={"a": "1", "-b": ""}),
    "mounts": adjust(mounts=[nri.Mount(destination="/m", source="/s", type="bind", options=["ro"])]),
    "env": adjust(env=[env("A", "2"), env("-B")]),
    "args": adjust(args=["run"]),
    "hooks": adjust(hooks=nri.Hooks(create_runtime=[nri.Hook(path="/h", timeout=nri.OptionalInt(value=3))])),
    "rlimits": adjust(rlimits=[nri.POSIXRlimit(type="RLIMIT_CORE", hard=2, soft=1)]),
    "devices": linux(devices=[nri.LinuxDevice(path="/dev/x", type="c", major=1, minor=3)]),
    "deviceRules": resources(devices=[nri.LinuxDeviceCgroup(allow=True, type="c", access="r")]),
    "namespaces": linux(namespaces=[nri.LinuxNamespace(type="cgroup"), nri.LinuxNamespace(type="-uts")]),
    "sysctl": linux(sysctl={"net.a": "1"}),
    "netDevices": linux(net_devices={"eth9": nri.LinuxNetDevice(name="net9")}),
    "intelRdt": resources(rdt_class=nri.OptionalString(value="gold")),
    "resources": resources(memory=nri.LinuxMemory(swappiness=nri.OptionalUInt64(value=0))),
    "noBlockIO": resources(blockio_class=nri.OptionalString()),
    "oomScoreAdj": linux(oom_score_adj=nri.OptionalInt(value=0)),
    "ioPriority": linux(io_priority=nri.LinuxIOPriority(priority=4, **{"class": nri.IOPRIO_CLASS_BE})),
    "scheduler": linux(scheduler=nri.LinuxScheduler(policy=nri.SCHED_BATCH, nice=5)),
    "memoryPolicy": linux(memory_policy=nri.LinuxMemoryPolicy(mode=nri.MPOL_BIND, nodes="0")),
    "seccomp": linux(seccomp_policy=nri.LinuxSeccomp(default_action="SCMP_ACT_ALLOW")),
}
"""A change of each kind that the OCI runtime supports."""


def test_each_kind_of_change_has_a_case() -> None:
    # The case of CDI devices below has additionalGids. Options of mounts come from kubelets, not from plugins.
    assert EVERYTHING.keys() | {"additionalGids", "mountOptions"} == CHANGES.keys()


@pytest.mark.parametrize("kind", EVERYTHING)
def test_a_field_that_docker_lacks_is_ordered_from_the_oci_runtime(kind: str) -> None:
    changes = changes_of(EVERYTHING[kind].adjust, env=["A=1", "B=2"])
    assert list(changes.config) == [kind]
    assert changes.limits.is_empty


def test_orders_have_the_values_of_config_json() -> None:
    merged = nri.ContainerAdjustment()
    for answer in EVERYTHING.values():
        merged.MergeFrom(answer.adjust)
    assert changes_of(merged, env=["A=1", "B=2"]).config == {
        "annotations": {"set": {"a": "1"}, "remove": ["b"]},
        "mounts": {
            "set": [{"destination": "/m", "type": "bind", "source": "/s", "options": ["ro"]}],
            "remove": [],
        },
        "env": {"set": [["A", "2"]], "remove": ["B"]},
        "args": ["run"],
        "hooks": {"createRuntime": [{"path": "/h", "args": [], "env": [], "timeout": 3}]},
        "rlimits": [{"type": "RLIMIT_CORE", "hard": 2, "soft": 1}],
        "devices": {"set": [{"path": "/dev/x", "type": "c", "major": 1, "minor": 3}], "remove": []},
        "deviceRules": [{"allow": True, "access": "r", "type": "c"}],
        "namespaces": {"set": [{"type": "cgroup"}], "remove": ["uts"]},
        "sysctl": {"set": {"net.a": "1"}, "remove": []},
        "netDevices": {"set": {"eth9": {"name": "net9"}}, "remove": []},
        "intelRdt": {"remove": False, "set": {"closID": "gold"}},
        "resources": {"memory": {"swappiness": 0}},
        "noBlockIO": True,
        "oomScoreAdj": 0,
        "ioPriority": {"class": "IOPRIO_CLASS_BE", "priority": 4},
        "scheduler": {"policy": "SCHED_BATCH", "nice": 5},
        "memoryPolicy": {"mode": "MPOL_BIND", "nodes": "0"},
        "seccomp": {"defaultAction": "SCMP_ACT_ALLOW", "architectures": [], "flags": [], "syscalls": []},
    }


def test_exec_processes_get_variables_and_rlimits() -> None:
    merged = nri.ContainerAdjustment()
    for kind in ("env", "rlimits", "args"):
        merged.MergeFrom(EVERYTHING[kind].adjust)
    assert changes_of(merged, env=["A=1", "B=2"]).process == {
        "env": {"A": ["1", "2"], "B": ["2", None]},
        "rlimits": [{"type": "RLIMIT_CORE", "hard": 2, "soft": 1}],
    }


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"../memory.high": "max"}, "'../memory.high' is not a cgroup file"),
        ({"cgroup.freeze": "1"}, "'cgroup.freeze' is not a limit of a container"),
        ({"pids.max": "abc"}, "'abc' is neither a number"),
        ({"pids.max": "0"}, "'0' is neither a number"),
    ],
)
def test_files_that_the_cri_refuses_are_refused(files: dict[str, str], reason: str) -> None:
    """Plugins take them from annotations of pods."""
    with pytest.raises(FailedPrecondition, match=r"linux\.resources\.unified") as refused:
        changes_of(resources(unified=files).adjust, env=())
    assert reason in str(refused.value)


def test_page_sizes_that_the_cri_refuses_are_refused() -> None:
    answer = resources(hugepage_limits=[nri.HugepageLimit(page_size="3MB", limit=1)])
    with pytest.raises(FailedPrecondition, match="'3MB' is not a size"):
        changes_of(answer.adjust, env=())


@pytest.mark.parametrize(
    ("answer", "field"),
    [
        (linux(cgroups_path="/mine"), "linux.cgroups_path"),
        (resources(blockio_class=nri.OptionalString(value="fast")), "linux.resources.blockio_class"),
        (resources(memory=nri.LinuxMemory(kernel=nri.OptionalInt64(value=1))), "linux.resources.memory.kernel"),
    ],
)
def test_an_unsupported_field_is_refused_by_name(answer: nri.CreateContainerResponse, field: str) -> None:
    with pytest.raises(FailedPrecondition, match=f"fields that Docker does not support: {field}: "):
        changes_of(answer.adjust, env=[])


def test_cdi_devices_are_resolved(tmp_path: Path) -> None:
    edits = {
        "env": ["A=device", "D=1"],
        "deviceNodes": [{"path": "/dev/gpu0", "type": "c", "major": 195, "minor": 7, "gid": 44}],
        "mounts": [{"hostPath": "/usr/lib/gpu", "containerPath": "/lib/gpu", "options": ["ro"]}],
        "hooks": [{"hookName": "createContainer", "path": "/bin/gpu", "args": ["gpu"]}],
        "additionalGids": [44],
    }
    devices = [{"name": "0", "containerEdits": edits}]
    (tmp_path / "gpu.json").write_text(json.dumps({"kind": "vendor.com/gpu", "devices": devices}))
    answer = adjust(CDI_devices=[nri.CDIDevice(name="vendor.com/gpu=0")], env=[env("A", "plugin"), env("B", "plugin")])

    changes = changes_of(answer.adjust, env=["A=before"], cdi_directories=[str(tmp_path)])

    assert changes.config == {
        "env": {"set": [["B", "plugin"], ["A", "device"], ["D", "1"]], "remove": []},
        "mounts": {
            "set": [{"destination": "/lib/gpu", "type": "bind", "source": "/usr/lib/gpu", "options": ["ro"]}],
            "remove": [],
        },
        "devices": {
            "set": [{"path": "/dev/gpu0", "type": "c", "major": 195, "minor": 7, "gid": 44}],
            "remove": [],
        },
        "hooks": {"createContainer": [{"path": "/bin/gpu", "args": ["gpu"], "env": []}]},
        "additionalGids": [44],
    }
    assert changes.process["env"]["A"] == ["before", "device"]
    answer.adjust.CDI_devices[0].name = "vendor.com/gpu=1"
    with pytest.raises(FailedPrecondition, match=r"CDI device vendor\.com/gpu=1: no specification in"):
        changes_of(answer.adjust, env=[], cdi_directories=[str(tmp_path)])


def fields(message: Any, prefix: str = "") -> Iterator[str]:
    """Yield the paths of the fields of a message; nested messages are expanded."""
    parts = {"LinuxContainerAdjustment", "LinuxResources", "LinuxMemory", "LinuxCPU"}
    for field in message.fields:
        if field.message_type is not None and field.message_type.name in parts:
            yield from fields(field.message_type, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


def test_each_field_has_a_row() -> None:
    assert sorted(FIELD_SUPPORT) == sorted(fields(nri.ContainerAdjustment.DESCRIPTOR))


def test_the_page_has_the_fields_of_each_way() -> None:
    fields_of: dict[str, list[str]] = {}
    for path, how in FIELD_SUPPORT.items():
        fields_of.setdefault(how, []).append(f"`{path}`")

    table = "".join(f"| {how} | {', '.join(paths)} |\n" for how, paths in fields_of.items())

    assert table in re.sub(r"`([\w.]+)\.\{([\w, ]+)\}`", expanded, PAGE.read_text())


def expanded(braces: re.Match[str]) -> str:
    """Return the paths that `path.{name, name}` stands for."""
    return ", ".join(f"`{braces[1]}.{name}`" for name in braces[2].split(", "))


# With a container


def test_changes_become_an_order_and_docker_limits(
    node: Runtime, connect: Connect, engine: FakeEngine, orders: Path
) -> None:
    plugin = connect()
    cpu = nri.LinuxCPU(shares=nri.OptionalUInt64(value=77), cpus="0")
    memory = nri.LinuxMemory(limit=nri.OptionalInt64(value=64 << 20), reservation=nri.OptionalInt64(value=32 << 20))
    limits = nri.LinuxResources(cpu=cpu, memory=memory, pids=nri.LinuxPids(limit=50))
    plugin.handlers["CreateContainer"] = lambda _: adjust(
        args=["run"], linux=nri.LinuxContainerAdjustment(resources=limits)
    )
    container = created(node, ready_pod(node))

    host = engine.containers[container].host
    assert (host["CpuShares"], host["CpusetCpus"], host["PidsLimit"]) == (77, "0", 50)
    assert (host["Memory"], host["MemoryReservation"]) == (64 << 20, 32 << 20)
    assert host["Runtime"] == "pydockershim"
    assert order_of(orders, container) == Order(
        container, docker_root="/var/lib/docker", mapped=("/etc/resolv.conf",), adjustment={"args": ["run"]}
    )


def test_an_unchanged_container_has_an_empty_order(node: Runtime, connect: Connect, orders: Path) -> None:
    connect()
    container = created(node, ready_pod(node))
    assert (orders / container).read_bytes().split()[3:5] == [b"0", b"0"]


def test_without_plugins_there_is_no_order(node: Runtime, engine: FakeEngine, orders: Path) -> None:
    container = created(node, ready_pod(node))
    assert engine.containers[container].host["Runtime"] == ""
    assert not orders.exists()


@pytest.mark.parametrize("kind", ["args", "env"])
def test_without_the_oci_runtime_only_limits_can_be_changed(
    node: Runtime, connect: Connect, engine: FakeEngine, kind: str
) -> None:
    plugin = connect()
    pod = ready_pod(node)
    plugin.handlers["CreateContainer"] = lambda _: EVERYTHING[kind]
    with pytest.raises(
        FailedPrecondition, match=f"NRI plugins have set {kind}: Docker has no OCI runtime pydockershim"
    ):
        created(node, pod)
    assert list(engine.containers) == [pod]

    plugin.handlers["CreateContainer"] = lambda _: resources(cpu=nri.LinuxCPU(cpus="0"))
    container = created(node, pod)
    assert engine.containers[container].host["CpusetCpus"] == "0"


def test_a_conflict_of_two_plugins_undoes_the_container(node: Runtime, connect: Connect, engine: FakeEngine) -> None:
    for index in ("10", "20"):
        connect(index, "args").handlers["CreateContainer"] = lambda _: adjust(args=["run"])
    pod = ready_pod(node)
    with pytest.raises(FailedPrecondition, match='plugins "20-args" and "10-args" both tried to set Args'):
        created(node, pod)
    assert list(engine.containers) == [pod]


def test_a_validating_plugin_rejects_a_container(
    node: Runtime, connect: Connect, engine: FakeEngine, orders: Path
) -> None:
    connect("10", "changes").handlers["CreateContainer"] = lambda _: adjust(args=["run"])
    validator = connect("99", "validator", events=1 << nri.VALIDATE_CONTAINER_ADJUSTMENT - 1)
    pod = ready_pod(node)
    created(node, pod, "fine")
    request = validator.wait_heard("ValidateContainerAdjustment")
    assert list(request.adjust.args) == ["run"]
    assert request.owners.owners[request.container.id].simple[7] == "10-changes"
    assert [plugin.name for plugin in request.plugins] == ["changes", "validator"]

    answer = nri.ValidateContainerAdjustmentResponse(reject=True, reason="not here")
    validator.handlers["ValidateContainerAdjustment"] = lambda _: answer
    with pytest.raises(FailedPrecondition, match=r"NRI plugin 99-validator rejects .*: not here"):
        created(node, pod, "refused")

    validator.handlers["ValidateContainerAdjustment"] = lambda _: validator.close()
    with pytest.raises(FailedPrecondition, match="99-validator did not validate the container"):
        created(node, pod, "unknown")


def test_the_built_in_validator_rejects_a_container(rt: Runtime, tmp_path: Path, orders: Path) -> None:
    changes = {"nri_default_validator": True, "nri_reject_sysctl_adjustment": True, "nri_required_plugins": ("sysctl",)}
    config = replace_config(rt, nri_socket_path=tmp_path / "nri.sock", nri_plugin_path=tmp_path, **changes)
    object.__setattr__(rt, "config", config)
    with served(rt) as node:
        pod = ready_pod(node)
        with pytest.raises(FailedPrecondition, match="requires plugins that are not registered"):
            created(node, pod)
        with connected(config.nri_socket_path, "10", "sysctl") as plugin:
            wait_until(node.nri.rows)
            created(node, pod, "fine")
            plugin.handlers["CreateContainer"] = lambda _: linux(sysctl={"net.a": "1"})
            with pytest.raises(FailedPrecondition, match='lets no plugin change sysctls: "10-sysctl" did'):
                created(node, pod)


def test_a_plugin_that_registers_during_a_create_changes_the_container(
    node: Runtime, engine: FakeEngine, orders: Path
) -> None:
    pod = ready_pod(node)
    release = threading.Event()
    made: list[str] = []
    with arriving(node.config.nri_socket_path, events=1 << nri.CREATE_CONTAINER - 1) as plugin:
        plugin.handlers["Synchronize"] = lambda _: release.wait(SECONDS)
        plugin.handlers["CreateContainer"] = lambda _: adjust(args=["run"])
        plugin.register("10", "late")
        plugin.wait_heard("Synchronize")
        making = threading.Thread(target=lambda: made.append(created(node, pod)))
        making.start()
        wait_until(lambda: len(engine.containers) == 2)
        assert list_containers(node, filter=pb.ContainerFilter()) == []
        release.set()
        making.join()
    assert order_of(orders, made[0]).adjustment == {"args": ["run"]}

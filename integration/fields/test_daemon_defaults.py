"""Docker daemons whose configuration changes the default privileges of containers."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from integration.conftest import Served, make_engine, make_node_dirs, serving
from integration.cri import HOST_NETWORK
from integration.fields.limits import MIB, V2, kernel, limited, update
from integration.networks import bridge, conflist
from integration.node import images as node_images
from integration.node.engine import Engine, remove_link
from integration.node.images import Image
from integration.node.isolation import Node, new_home
from integration.pods.kubelet import Kubelet, failure, pid_of, proc_status, refusal, secured
from integration.pods.user_namespaces import features, pod_of
from shim.api.v1 import api_pb2 as pb

LINK = "defaults0"
DEFAULT = pb.SecurityProfile(profile_type=pb.SecurityProfile.RuntimeDefault)


@contextmanager
def served_by(engine: Engine, node: Node, pause: Image) -> Iterator[tuple[Served, Kubelet]]:
    """Run a new engine with a server on it."""
    dirs = make_node_dirs(node, new_home("defaults"))
    plugin = bridge(dirs.cni_leases, subnets=["10.85.0.0/16"], link=LINK)
    (dirs.cni_conf / "10-defaults.conflist").write_text(conflist(plugin, name="defaults"))
    engine.start()
    try:
        for image in (pause, node_images.busybox_image(node.busybox)):
            node_images.load(engine.api, image)
        with serving(engine, dirs) as made:
            yield made, Kubelet(made.cri, node_images.BUSYBOX)
    finally:
        engine.close()
        remove_link(LINK)


def test_an_administrators_seccomp_profile_is_the_default_and_pods_choose_their_privileges(
    engine: Engine, node: Node, pause_image: Image, tmp_path: Path
) -> None:
    profile = tmp_path / "administrators.json"
    rule = {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 95}
    profile.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]}))
    settings: dict[str, object] = {"seccomp-profile": str(profile), "no-new-privileges": True}
    strict = make_engine(node, engine.name, variant="s", settings=settings)
    with served_by(strict, node, pause_image) as (served, kubelet):
        pod = kubelet.pod()
        container = kubelet.started(pod, **secured(seccomp=DEFAULT, no_new_privs=False))
        free = kubelet.started(pod, **secured(no_new_privs=True))

        assert proc_status(served, container)["NoNewPrivs"] == ["0"]
        assert proc_status(served, free)["NoNewPrivs"] == ["1"]
        assert "Operation not supported" in kubelet.inside(container, "mkdir /tmp/x")
        assert kubelet.inside(free, "mkdir /tmp/x") == ""


def test_containers_have_seccomp_where_the_daemon_confines_nothing_by_default(
    engine: Engine, node: Node, pause_image: Image
) -> None:
    if engine.name == "20.10":
        pytest.skip("this engine cannot be configured to confine nothing")
    loose = make_engine(node, engine.name, variant="u", settings={"seccomp-profile": "unconfined"})
    with served_by(loose, node, pause_image) as (served, kubelet):
        pod = kubelet.pod()
        container = kubelet.started(pod, **secured(seccomp=DEFAULT))

        assert proc_status(served, container)["Seccomp"] == ["2"]
        assert proc_status(served, pod.id)["Seccomp"] == ["2"]


@pytest.mark.parametrize("mode", ["host", "private"])
def test_pods_ignore_the_daemons_default_cgroup_namespace_mode(
    engine: Engine, node: Node, pause_image: Image, mode: str
) -> None:
    """On cgroup v1 pods see the machine's groups, as under the other runtimes; on v2 they see only their own."""
    daemon = make_engine(node, engine.name, variant=f"g{mode[0]}", settings={"default-cgroupns-mode": mode})
    with served_by(daemon, node, pause_image) as (served, kubelet):
        pod = kubelet.pod()
        for member in (kubelet.started(pod), pod.id):
            namespace = Path(f"/proc/{pid_of(served, member)}/ns/cgroup").readlink()
            assert (namespace != Path("/proc/self/ns/cgroup").readlink()) == V2


@pytest.fixture
def remapped_users() -> Iterator[None]:
    """Create the user whose ids Docker maps. Docker would otherwise make it with programs of the distribution."""
    files = {"passwd": "dockremap:x:990:990::/:/bin/false\n", "group": "dockremap:x:990:\n"}
    files |= dict.fromkeys(("subuid", "subgid"), "dockremap:100000:65536\n")
    before = {Path("/etc", name): Path("/etc", name).read_text() for name in files}
    for path, text in before.items():
        path.write_text(text + files[path.name])
    yield
    for path, text in before.items():
        path.write_text(text)


@pytest.mark.usefixtures("remapped_users")
def test_pods_run_in_the_nodes_user_namespace_where_the_daemon_remaps_users(
    engine: Engine, node: Node, pause_image: Image, tmp_path: Path
) -> None:
    """Pods have the node's users, volumes and network; only the owners of image files are shifted."""
    (tmp_path / "volume").mkdir()
    os.chown(tmp_path / "volume", 1000, 1000)
    volume = pb.Mount(host_path=str(tmp_path / "volume"), container_path="/volume")
    daemon = make_engine(node, engine.name, variant="r", settings={"userns-remap": "default"})
    with served_by(daemon, node, pause_image) as (served, kubelet):
        for pod in (kubelet.pod(), kubelet.pod(linux=HOST_NETWORK)):
            user = secured(run_as_user=pb.Int64Value(value=1000), run_as_group=pb.Int64Value(value=1000))
            container = kubelet.started(pod, mounts=[volume], **user)

            assert kubelet.inside(container, "cat /proc/self/uid_map").split() == ["0", "0", "4294967295"]
            assert proc_status(served, container)["Uid"] == ["1000"] * 4
            assert kubelet.cri.container_status(container).user.linux.uid == 1000
            assert kubelet.inside(container, "touch /volume/new && stat -c %u /volume/new") == "1000\n"
            assert kubelet.inside(container, "stat -c %u /bin/busybox") == "100000\n"
        assert not features(served.cri).user_namespaces
        code, reason = refusal(lambda: pod_of(kubelet))
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "Docker uses the same user namespace for all containers (userns-remap)" in reason


@pytest.mark.skipif(V2, reason="all controllers are in one tree")
def test_limits_that_docker_discards_are_refused(engine: Engine, node: Node, pause_image: Image) -> None:
    """Without the cpuset controller Docker warns and ignores the limit."""
    daemon = make_engine(node, engine.name, variant="c")
    # Docker also finds the mounts that other mounts hide.
    gone = "umount /sys/fs/cgroup/cpuset || umount -l /sys/fs/cgroup || umount -l /sys || exit"
    without = f"while grep -q ' cgroup .*,cpuset' /proc/self/mountinfo; do {gone}; done 2>/dev/null"
    daemon.daemon.argv = ("unshare", "-m", "sh", "-c", f'{without}; exec "$@"', "-", *daemon.daemon.argv)
    with served_by(daemon, node, pause_image) as (served, kubelet):
        pod = kubelet.pod()
        container = kubelet.started(pod, linux=limited(cpu_shares=512, memory_limit_in_bytes=64 * MIB))
        before = served.snapshot()

        with pytest.raises(grpc.RpcError) as refusal:
            kubelet.created(pod, linux=limited(cpuset_cpus="0"))
        with pytest.raises(grpc.RpcError) as unchanged:
            update(kubelet.cri, container, cpu_shares=256, memory_limit_in_bytes=32 * MIB, cpuset_mems="0")

        assert failure(refusal)[0] == failure(unchanged)[0] == grpc.StatusCode.FAILED_PRECONDITION
        assert "config.linux.resources.cpuset_cpus 0: Docker has discarded it" in failure(refusal)[1]
        assert "linux.cpuset_mems 0: Docker has discarded it" in failure(unchanged)[1]
        assert served.snapshot() == before
        files = {"cpu.shares": "512", "memory.limit_in_bytes": str(64 * MIB)}
        assert kernel(served, container, files) == files

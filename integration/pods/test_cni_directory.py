"""The directory of CNI configurations: added, changed and removed files take effect soon."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from integration.conftest import Images, NodeDirs, Served, serving
from integration.cri import HOST_NETWORK
from integration.networks import bridge, conflist
from integration.node.engine import Engine, own_link
from integration.node.fuse import HangingVolume
from integration.pods.kubelet import Kubelet, failure
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

SECONDS = 60.0
LINK = "dead0"


@pytest.fixture
def emptied(served: Served) -> Iterator[Path]:
    """The directory without the usual network, which is restored afterwards."""
    usual = served.dirs.cni_conf / "10-pods.conflist"
    content = usual.read_text()
    usual.unlink()
    wait_network(served, ready=False)
    yield served.dirs.cni_conf
    for path in served.dirs.cni_conf.iterdir():
        path.unlink()
    usual.write_text(content)
    wait_network(served, ready=True)


def condition(served: Served) -> pb.RuntimeCondition:
    conditions = served.cri.runtime.Status(pb.StatusRequest()).status.conditions
    return next(c for c in conditions if c.type == "NetworkReady")


def wait_network(served: Served, *, ready: bool, says: str = "") -> pb.RuntimeCondition:
    """Wait until NetworkReady has this value and message, and return it."""

    def fits() -> bool:
        now = condition(served)
        return now.status is ready and says in now.message

    wait_until(fits, SECONDS)
    return condition(served)


def test_without_a_configuration_the_network_is_not_ready(served: Served, emptied: Path, kubelet: Kubelet) -> None:
    now = condition(served)
    assert now.reason == "NetworkPluginNotReady"
    assert str(emptied) in now.message

    before = served.snapshot()
    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.pod()
    code, message = failure(refusal)
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert str(emptied) in message
    assert served.snapshot() == before


def test_the_rest_of_the_runtime_is_ready_without_a_network(served: Served, emptied: Path) -> None:
    assert emptied.is_dir()
    conditions = served.cri.runtime.Status(pb.StatusRequest()).status.conditions

    assert {c.type: c.status for c in conditions} == {"RuntimeReady": True, "NetworkReady": False}


def test_a_new_file_takes_effect(served: Served, emptied: Path, kubelet: Kubelet) -> None:
    (emptied / "50-new.conflist").write_text(conflist(bridge(served.dirs.cni_leases), name="pods"))

    now = wait_network(served, ready=True, says="50-new.conflist")
    assert (now.reason, "network pods of" in now.message) == ("", True)
    kubelet.pod()


def test_a_changed_file_takes_effect(served: Served, emptied: Path) -> None:
    path = emptied / "50-new.conflist"
    path.write_text(conflist(bridge(served.dirs.cni_leases), name="first"))
    wait_network(served, ready=True, says="network first")

    path.write_text(conflist(bridge(served.dirs.cni_leases), name="second"))

    wait_network(served, ready=True, says="network second")


def test_a_file_that_is_moved_in_takes_effect(served: Served, emptied: Path, tmp_path: Path) -> None:
    # As installers do: written whole under another name first.
    new = emptied / ".50-new.conflist.tmp"
    new.write_text(conflist(bridge(served.dirs.cni_leases), name="moved"))

    new.rename(emptied / "50-new.conflist")

    wait_network(served, ready=True, says="network moved")
    assert tmp_path.is_dir()


def test_a_removed_file_takes_effect(served: Served, emptied: Path) -> None:
    path = emptied / "50-new.conflist"
    path.write_text(conflist(bridge(served.dirs.cni_leases), name="gone"))
    wait_network(served, ready=True)

    path.unlink()

    wait_network(served, ready=False, says=str(emptied))


def test_the_first_valid_file_by_name_is_used_and_the_others_are_reported(served: Served, emptied: Path) -> None:
    leases = served.dirs.cni_leases
    (emptied / "10-a.conflist").write_text("{ this is not JSON")
    (emptied / "20-b.conflist").write_text('{"cniVersion": "1.0.0", "name": "b", "plugins": []}')
    (emptied / "30-c.conflist").write_text(conflist({"type": "no-such-plugin"}, name="c"))
    (emptied / "40-d.conf").write_text('{"cniVersion": "0.3.1", "name": "single", "type": "ptp"}')
    (emptied / "50-e.conflist").write_text(conflist(bridge(leases), name="last"))

    now = wait_network(served, ready=True, says="network single")
    assert str(emptied / "40-d.conf") in now.message
    assert "10-a.conflist: not JSON" in now.message
    assert "20-b.conflist: no plugins" in now.message
    assert "no-such-plugin not found in" in now.message
    assert str(served.dirs.cni_bin) in now.message


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"cniVersion": "9.9.9", "name": "x", "plugins": [{"type": "bridge"}]}', "unsupported cniVersion 9.9.9"),
        ('{"cniVersion": "1.0.0", "plugins": [{"type": "bridge"}]}', "no name"),
        ('{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "../evil"}]}', "bad type"),
    ],
    ids=["empty", "half", "list", "version", "name", "type"],
)
def test_a_file_that_is_no_configuration_is_reported(
    served: Served, emptied: Path, kubelet: Kubelet, content: str, reason: str
) -> None:
    (emptied / "10-bad.conflist").write_text(content)

    now = wait_network(served, ready=False, says="10-bad.conflist")
    assert reason in now.message
    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.pod()
    assert failure(refusal)[0] == grpc.StatusCode.FAILED_PRECONDITION
    assert "10-bad.conflist" in failure(refusal)[1]


def test_a_plugin_that_appears_makes_the_network_ready(served: Served, emptied: Path) -> None:
    (emptied / "10-late.conflist").write_text(conflist({"type": "late"}, name="late"))
    wait_network(served, ready=False, says="late not found")
    plugin = served.dirs.cni_more_bin / "late"

    plugin.write_text("#!/bin/sh\n")
    plugin.chmod(0o755)

    wait_network(served, ready=True, says="network late")
    plugin.unlink()
    wait_network(served, ready=False, says="late not found")


@pytest.fixture
def hanging(engine: Engine, images: Images, node_dirs: NodeDirs) -> Iterator[tuple[Served, HangingVolume]]:  # noqa: ARG001 - images must be there
    """A server whose configuration directory is on a volume that can hang; no other server uses its network."""
    file = conflist(bridge(node_dirs.cni_leases, link=LINK, subnets=("10.98.0.0/16",)), name="dead").encode()
    volume = HangingVolume(node_dirs.cni_conf, name="10-dead.conflist", content=file)
    try:
        with own_link(LINK), serving(engine, node_dirs) as served:
            yield served, volume
    finally:
        volume.close()


def test_the_network_stays_ready_while_its_directory_hangs(
    hanging: tuple[Served, HangingVolume], images: Images
) -> None:
    served, volume = hanging
    kubelet = Kubelet(served.cri, images.busybox)
    with volume.hanging():
        now = wait_network(served, ready=True, says=f"{volume.path} does not answer")
        assert "network dead of" in now.message
        container = kubelet.started(kubelet.pod())
        assert kubelet.cri.exec(container, "true").exit_code == 0
        kubelet.remove_all()
    wait_until(lambda: "does not answer" not in condition(served).message)


def test_a_server_starts_while_the_directory_hangs(hanging: tuple[Served, HangingVolume], images: Images) -> None:
    served, volume = hanging
    kubelet = Kubelet(served.cri, images.busybox)
    before = served.snapshot()
    host_pod = kubelet.pod(linux=HOST_NETWORK)
    container = kubelet.started(host_pod)
    served.server.stop()
    with volume.hanging():
        served.restart()
        now = condition(served)
        assert (now.status, now.reason) == (False, "NetworkPluginNotReady")
        assert f"cni configuration directory {volume.path} does not answer" in now.message
        with pytest.raises(grpc.RpcError) as refusal:
            kubelet.pod()
        assert failure(refusal)[0] == grpc.StatusCode.FAILED_PRECONDITION
        assert f"{volume.path} does not answer" in failure(refusal)[1]
        assert kubelet.cri.exec(container, "true").exit_code == 0
        kubelet.started(kubelet.pod(linux=HOST_NETWORK))
        # No thread of the server blocks in the kernel: it can end, and its successor start.
        served.server.stop()
        served.restart()
        assert not condition(served).status
    wait_network(served, ready=True, says="network dead of")
    kubelet.pod()
    kubelet.remove_all()
    assert served.snapshot() == before


@pytest.fixture
def templated(engine: Engine, images: Images, node_dirs: NodeDirs) -> Iterator[tuple[Served, HangingVolume]]:  # noqa: ARG001 - as above
    """A server that writes its network from a template on a volume that can hang."""
    template = conflist(bridge(node_dirs.cni_leases, link=LINK, subnets=("10.98.0.0/16",)), name="written").encode()
    volume = HangingVolume(node_dirs.state.with_name("templates"), name="cni.template", content=template)
    settings = {"cni_conf_template": volume.file, "pod_cidr": "10.98.0.0/16"}
    try:
        with own_link(LINK), serving(engine, node_dirs, **settings) as served:
            yield served, volume
    finally:
        volume.close()


def test_a_template_that_hangs_keeps_only_its_network_from_being_written(
    templated: tuple[Served, HangingVolume], images: Images
) -> None:
    served, volume = templated
    kubelet = Kubelet(served.cri, images.busybox)
    new = pb.UpdateRuntimeConfigRequest(runtime_config=pb.RuntimeConfig(network_config={"pod_cidr": "10.97.0.0/16"}))
    served.server.stop()
    with volume.hanging():
        served.restart()
        wait_network(served, ready=True, says="network written of")
        kubelet.started(kubelet.pod())
        with pytest.raises(grpc.RpcError) as refusal:
            served.cri.runtime.UpdateRuntimeConfig(new, timeout=SECONDS)
        assert failure(refusal)[0] == grpc.StatusCode.DEADLINE_EXCEEDED
        assert str(volume.file) in failure(refusal)[1]
    wait_until(lambda: updated(served, new))
    kubelet.remove_all()


def updated(served: Served, config: pb.UpdateRuntimeConfigRequest) -> bool:
    """Return whether the server accepts it: it uses a volume again once all its pending calls on it returned."""
    try:
        served.cri.runtime.UpdateRuntimeConfig(config)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        return False
    return True

from pathlib import Path

import pytest

from integration.conftest import Served
from integration.cri import HOST_NETWORK
from integration.pods.kubelet import Kubelet, in_namespaces, pid_of
from shim.api.v1 import api_pb2 as pb

DNS = pb.DNSConfig(servers=["10.96.0.10", "fd00::a"], searches=["a.test", "b.test"], options=["ndots:5"])
RESOLV_CONF = "nameserver 10.96.0.10\nnameserver fd00::a\nsearch a.test b.test\noptions ndots:5\n"


def resolv_conf(kubelet: Kubelet, container_id: str) -> str:
    return kubelet.cri.exec(container_id, "cat", "/etc/resolv.conf").stdout.decode()


def test_resolv_conf_has_the_requested_settings(kubelet: Kubelet) -> None:
    pod = kubelet.pod(dns_config=DNS)

    assert resolv_conf(kubelet, kubelet.started(pod)) == RESOLV_CONF


def test_resolv_conf_defaults_to_the_nodes(kubelet: Kubelet) -> None:
    assert resolv_conf(kubelet, kubelet.started(kubelet.pod())) == Path("/etc/resolv.conf").read_text()


def test_resolv_conf_of_a_host_network_pod_has_the_requested_settings(kubelet: Kubelet) -> None:
    pod = kubelet.pod(dns_config=DNS, linux=HOST_NETWORK)

    assert resolv_conf(kubelet, kubelet.started(pod)) == RESOLV_CONF


def test_resolv_conf_is_one_file_and_survives_a_restart_of_pause(kubelet: Kubelet, served: Served) -> None:
    pod = kubelet.pod(dns_config=DNS)
    container = kubelet.started(pod, linux=in_namespaces(pid=pb.CONTAINER))

    def inode(container_id: str) -> int:
        return Path(f"/proc/{pid_of(served, container_id)}/root/etc/resolv.conf").stat().st_ino

    before = inode(pod.id)
    served.engine.api.restart(pod.id, timeout=0)

    assert inode(pod.id) == inode(container) == before
    assert resolv_conf(kubelet, container) == RESOLV_CONF


def test_a_container_may_mount_its_own_resolv_conf(kubelet: Kubelet, tmp_path: Path) -> None:
    (tmp_path / "resolv.conf").write_text("nameserver 9.9.9.9\n")
    mount = pb.Mount(host_path=str(tmp_path / "resolv.conf"), container_path="/etc/resolv.conf")

    container = kubelet.started(kubelet.pod(dns_config=DNS), mounts=[mount])

    assert resolv_conf(kubelet, container) == "nameserver 9.9.9.9\n"


@pytest.mark.parametrize("read_only", [False, True])
def test_resolv_conf_is_writable_if_the_root_file_system_is(kubelet: Kubelet, *, read_only: bool) -> None:
    pod = kubelet.pod(dns_config=DNS)
    context = pb.LinuxContainerSecurityContext(readonly_rootfs=read_only)
    container = kubelet.started(pod, linux=pb.LinuxContainerConfig(security_context=context))

    written = kubelet.inside(container, "echo '# more' >> /etc/resolv.conf && echo written")

    assert ("Read-only file system" in written) is read_only
    assert ("written" in written) is not read_only
    assert resolv_conf(kubelet, container) == RESOLV_CONF + ("" if read_only else "# more\n")

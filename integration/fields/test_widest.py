"""Values at the limits that Kubernetes allows reach the container through Docker.

`tests/cri/validate/test_kubelet.py` has the values that the server refuses.
"""

import os
import string
from pathlib import Path

import pytest

from integration.conftest import Served
from integration.pods.kubelet import Kubelet, Pod, docker_name, in_context
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

ANY_TEXT = "".join(map(chr, range(1, 256))) + "\u2028\U0001f433"
FILE_NAME = "a:b,c=d e" + ANY_TEXT.replace("/", "").replace(".", "")[:60] + "\u2028"
NAME_OF_A_VARIABLE = "".join(char for char in string.printable if char.isprintable() and char != "=")
OWN_KEYS = ("io.kubernetes.docker.type", "io.kubernetes.sandbox.id", "io.kubernetes.container.logpath")


@pytest.mark.parametrize("hostname", ["web-0.sub.shop.svc.", "a" * 63 + ".", "-x_y.", "é"])
def test_every_valid_hostname_works(kubelet: Kubelet, hostname: str) -> None:
    pod = kubelet.pod(hostname=hostname)

    container = kubelet.started(pod)

    assert kubelet.inside(container, "hostname") == f"{hostname}\n"
    assert kubelet.inside(container, "cat /etc/hostname") == f"{hostname}\n"


def test_a_pod_whose_domain_ends_with_a_dot_has_its_full_name(kubelet: Kubelet, tmp_path: Path) -> None:
    """As with setHostnameAsFQDN, where the kubelet mounts /etc/hosts."""
    hosts = tmp_path / "hosts"
    hosts.write_text("10.0.0.7\tweb-0.sub.shop.svc.\tweb-0\n")
    pod = kubelet.pod(hostname="web-0.sub.shop.svc.")

    container = kubelet.started(pod, mounts=[pb.Mount(container_path="/etc/hosts", host_path=str(hosts))])

    assert kubelet.inside(container, "hostname -f") == "web-0.sub.shop.svc.\n"


def test_a_pod_with_every_field_at_its_limit_runs(kubelet: Kubelet, served: Served, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    (tmp_path / FILE_NAME / "note").write_text("here")
    os.mknod(tmp_path / "device", 0o20666, os.makedev(1, 3))
    annotations, labels = {"example.com/any": ANY_TEXT + "\0"}, dict.fromkeys(OWN_KEYS, "theirs")
    dns = pb.DNSConfig(
        servers=["fe80::1%eth0", "010.0.0.1"],
        searches=[".", "example.com.", "_sip._tcp.example.com"],
        options=["ndots:", "edns0 trust-ad"],
    )
    linux = in_context(supplemental_groups=[2**31 - 1], run_as_user=pb.Int64Value(value=0))["linux"]
    linux.sysctls.update({"net/ipv4/ip_unprivileged_port_start": "7", "kernel.shm_rmid_forced": "1"})
    pod = kubelet.pod(
        annotations=annotations,
        labels=labels,
        dns_config=dns,
        linux=linux,
        port_mappings=[
            pb.PortMapping(container_port=80, host_port=15380),
            pb.PortMapping(container_port=81, host_port=15380, host_ip="0.0.0.0"),
            pb.PortMapping(container_port=82, host_ip="anything"),
        ],
    )

    container = kubelet.started(
        pod,
        annotations=annotations,
        labels=labels,
        envs=[pb.KeyValue(key=NAME_OF_A_VARIABLE, value=ANY_TEXT.encode()), pb.KeyValue(key=" "), pb.KeyValue(key="1")],
        working_dir=f"/srv/../{FILE_NAME}",
        mounts=[
            pb.Mount(container_path=f"/mnt/{FILE_NAME}", host_path=str(tmp_path / FILE_NAME)),
            pb.Mount(container_path="relative:ro", host_path=str(tmp_path / FILE_NAME)),
        ],
        devices=[pb.Device(host_path=str(tmp_path / "device"), container_path="dev/mine", permissions="mrwr")],
        stop_signal=pb.SIGNAL_SIGRTMAXMINUS14,
    )

    status, of_pod = kubelet.cri.container_status(container), kubelet.cri.sandbox_status(pod.id)
    assert (dict(status.annotations), dict(of_pod.annotations)) == (annotations, annotations)
    assert (dict(status.labels), dict(of_pod.labels)) == (labels, labels)
    assert status.mounts[0].container_path == f"/mnt/{FILE_NAME}"
    assert [each.id for each in kubelet.cri.containers(label_selector=labels, pod_sandbox_id=pod.id)] == [container]
    assert [each.id for each in kubelet.cri.sandboxes(label_selector=labels, id=pod.id)] == [pod.id]
    environment = Path(f"/proc/{served.engine.api.inspect_container(container)['State']['Pid']}/environ").read_bytes()
    assert {f"{NAME_OF_A_VARIABLE}={ANY_TEXT}".encode(), b" =", b"1="} <= set(environment.split(b"\0"))
    assert kubelet.inside(container, "cat /mnt/*/note /relative:ro/note") == "herehere"
    assert kubelet.inside(container, "pwd") == f"/{FILE_NAME}\n"
    assert kubelet.inside(container, "echo >/dev/mine && stat -c %t:%T /dev/mine") == "1:3\n"
    assert kubelet.inside(container, "cat /proc/sys/net/ipv4/ip_unprivileged_port_start") == "7\n"
    assert kubelet.inside(container, "cat /etc/resolv.conf").splitlines() == [
        "nameserver fe80::1%eth0",
        "nameserver 010.0.0.1",
        "search . example.com. _sip._tcp.example.com",
        "options ndots: edns0 trust-ad",
    ]


def test_a_stop_may_have_any_grace_period(kubelet: Kubelet, pod: Pod) -> None:
    container = kubelet.started(pod, "sh", "-c", "trap 'exit 3' TERM; sleep 3600 & wait")

    kubelet.cri.stop_container(container, timeout=2**63 - 1)

    assert kubelet.cri.container_status(container).exit_code == 3


def test_an_exec_may_have_any_timeout(kubelet: Kubelet, pod: Pod) -> None:
    assert kubelet.cri.exec(kubelet.started(pod), "echo", "", ANY_TEXT, timeout=2**63 - 1).stdout.decode() == (
        f" {ANY_TEXT}\n"
    )


def test_names_may_be_as_long_as_the_directory_of_a_log(kubelet: Kubelet, served: Served, tmp_path: Path) -> None:
    """A kubelet names the directory by namespace, name and uid, so it fails itself with a longer name."""
    uid, namespace = "0a5b8c1d-2e3f-4a5b-8c1d-2e3f4a5b8c1d", "n" * 63
    name = "p" * (255 - len(f"{namespace}__{uid}"))
    logs = tmp_path / f"{namespace}_{name}_{uid}"
    metadata = pb.PodSandboxMetadata(name=name, namespace=namespace, uid=uid, attempt=2**32 - 1)
    pod = kubelet.pod(metadata=metadata, log_directory=str(logs))

    container = kubelet.started(
        pod, "echo", "hello", metadata=pb.ContainerMetadata(name="c" * 63, attempt=2**31 - 1), log_path="c/0.log"
    )

    wait_until(lambda: kubelet.cri.container_status(container).state == pb.CONTAINER_EXITED)
    assert (logs / "c/0.log").read_text().endswith(" stdout F hello\n")
    assert docker_name(served, container) == f"k8s_{'c' * 63}_{name}_{namespace}_{uid}_{2**31 - 1}"

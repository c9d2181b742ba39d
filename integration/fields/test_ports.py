"""Host ports of every protocol and address, tested with traffic."""

import socket
import subprocess
import sys

import grpc
import pytest

from integration.conftest import Served
from integration.networks import nat_rules
from integration.node.isolation import NODE_ADDRESSES
from integration.pods.kubelet import Kubelet, failure
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

NODE_ADDRESS = NODE_ADDRESSES[0].partition("/")[0]


def asked(port: int) -> bytes:
    """Return the answer of the UDP server on a port of the node; empty without a server."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(0.5)
        client.sendto(b"anybody?", (NODE_ADDRESS, port))
        try:
            return client.recv(64)
        except OSError:
            return b""


UDP_SERVER = """
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("", 5353))
while True:
    server.sendto(b"here", server.recvfrom(64)[1])
"""


def test_a_udp_port_leads_into_the_pod(kubelet: Kubelet, served: Served) -> None:
    pod = kubelet.pod(port_mappings=[pb.PortMapping(protocol=pb.UDP, container_port=5353, host_port=15353)])
    inside = ["nsenter", f"--net={served.dirs.netns}/cri-{pod.id}", sys.executable, "-c", UDP_SERVER]

    with subprocess.Popen(inside) as server:
        answer = wait_until(lambda: asked(15353))
        server.kill()

    assert answer == b"here"


@pytest.mark.parametrize(
    ("mapping", "rule"),
    [
        (pb.PortMapping(protocol=pb.TCP, container_port=80, host_port=15354), "-p tcp -m tcp --dport 15354"),
        (pb.PortMapping(protocol=pb.UDP, container_port=80, host_port=15355), "-p udp -m udp --dport 15355"),
        (pb.PortMapping(protocol=pb.SCTP, container_port=80, host_port=15361), "-p sctp -m sctp --dport 15361"),
        (
            pb.PortMapping(protocol=pb.TCP, container_port=80, host_port=15356, host_ip=NODE_ADDRESS),
            f"-d {NODE_ADDRESS}/32 -p tcp -m tcp --dport 15356",
        ),
        (pb.PortMapping(protocol=pb.TCP, container_port=80, host_port=15357, host_ip="0.0.0.0"), "--dport 15357"),
    ],
    ids=["TCP", "UDP", "SCTP", "one address", "all addresses"],
)
def test_a_host_port_is_mapped_for_its_protocol_and_address(
    kubelet: Kubelet, mapping: pb.PortMapping, rule: str
) -> None:
    kubelet.pod(port_mappings=[mapping])

    assert rule in nat_rules()


def test_a_port_without_host_port_maps_nothing(kubelet: Kubelet) -> None:
    before = nat_rules().count("--dport")

    kubelet.pod(port_mappings=[pb.PortMapping(container_port=80), pb.PortMapping(container_port=80)])

    assert nat_rules().count("--dport") == before


def test_one_port_may_be_mapped_for_two_protocols(kubelet: Kubelet) -> None:
    ports = [pb.PortMapping(protocol=one, container_port=53, host_port=15358) for one in (pb.TCP, pb.UDP)]

    kubelet.pod(port_mappings=ports)

    rules = nat_rules()
    assert "-p tcp -m tcp --dport 15358" in rules
    assert "-p udp -m udp --dport 15358" in rules


@pytest.mark.parametrize(
    ("second", "field"),
    [
        (
            pb.PortMapping(container_port=81, host_port=15359),
            "config.port_mappings[1].host_port 15359 is already the host_port of",
        ),
        (pb.PortMapping(container_port=81, host_port=15360, host_ip="here"), "config.port_mappings[1].host_ip 'here'"),
        (
            pb.PortMapping(container_port=81, host_port=15360, protocol=7),  # type: ignore[arg-type] # of no name
            "config.port_mappings[1].protocol has the unknown value 7",
        ),
        (pb.PortMapping(container_port=0, host_port=15360), "config.port_mappings[1].container_port 0"),
        (pb.PortMapping(container_port=81, host_port=70000), "config.port_mappings[1].host_port 70000"),
    ],
    ids=["taken", "no address", "no protocol", "no port", "too high"],
)
def test_an_invalid_port_mapping_is_refused(kubelet: Kubelet, second: pb.PortMapping, field: str) -> None:
    first = pb.PortMapping(container_port=80, host_port=15359)

    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.pod(port_mappings=[first, second])

    code, message = failure(refusal)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert field in message

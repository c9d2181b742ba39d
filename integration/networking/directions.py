"""Connections in every direction between two pods, their node and the outside."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from integration.cri import pod_config
from integration.networking.lab import NODE, OUTSIDE, Lab
from integration.node.netns import Netns
from shim.api.v1 import api_pb2 as pb

PORT = 80
HOST_PORT = 8080
SERVICE = {4: "10.96.0.10", 6: "fd00:10:96::10"}

_REDIRECTING = ("PREROUTING", "OUTPUT")

CONNECT_SECONDS = 20.0
"""Timeout of a connection: on a busy machine seconds pass between the kernel's retries."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A running pod with a listener on PORT."""

    netns: Netns
    addresses: dict[int, str]


@dataclass(frozen=True, slots=True)
class Pods:
    """Two pods of a node; the first has a host port."""

    lab: Lab
    first: Pod
    second: Pod


def _pod_to_pod(pods: Pods, family: int) -> str:
    return greeting(pods.second.netns, pods.first.addresses[family])


def _pod_to_outside(pods: Pods, family: int) -> str:
    return greeting(pods.first.netns, OUTSIDE[family])


def _outside_to_host_port(pods: Pods, family: int) -> str:
    return greeting(pods.lab.outside, NODE[family], port=HOST_PORT)


def _pod_to_own_host_port(pods: Pods, family: int) -> str:
    return greeting(pods.first.netns, NODE[family], port=HOST_PORT)


def _pod_to_other_host_port(pods: Pods, family: int) -> str:
    return greeting(pods.second.netns, NODE[family], port=HOST_PORT)


def _pod_to_itself_by_service(pods: Pods, family: int) -> str:
    return greeting(pods.first.netns, SERVICE[family])


def _pod_to_other_by_service(pods: Pods, family: int) -> str:
    return greeting(pods.second.netns, SERVICE[family])


def _node_to_pod(pods: Pods, family: int) -> str:
    return greeting(pods.lab.node, pods.first.addresses[family])


DIRECTIONS: dict[str, tuple[Callable[[Pods, int], str], str]] = {
    "pod to pod": (_pod_to_pod, "first"),
    "pod to outside": (_pod_to_outside, "outside"),
    "outside to host port": (_outside_to_host_port, "first"),
    "pod to its own host port": (_pod_to_own_host_port, "first"),
    "pod to another's host port": (_pod_to_other_host_port, "first"),
    "pod to itself by Service": (_pod_to_itself_by_service, "first"),
    "pod to another by Service": (_pod_to_other_by_service, "first"),
    "node to pod": (_node_to_pod, "first"),
}
"""By direction: the function that connects, and the name that must answer."""


def connect(pods: Pods, direction: str, family: int) -> str:
    """Test the connection of a direction; return why it fails, empty if the right pod answers."""
    make, answering = DIRECTIONS[direction]
    try:
        answer = make(pods, family)
    except OSError as error:
        return str(error)
    return "" if answer == answering else f"{answer!r} answers"


def greeting(client: Netns, address: str, *, port: int = PORT, seconds: float = CONNECT_SECONDS) -> str:
    """Connect from a network namespace, and return the name that answers. OSError without a connection."""
    with client.call(lambda: socket.create_connection((address, port), timeout=seconds)) as connection:
        return connection.makefile("rb").read().decode()


@contextmanager
def two_pods(lab: Lab, *, families: tuple[int, ...]) -> Iterator[Pods]:
    """Run two pods on the server, and a Service in front of the first, while the block runs."""
    with ExitStack() as ending:
        ending.enter_context(_greeter(lab.outside, "outside"))
        ports = [pb.PortMapping(container_port=PORT, host_port=HOST_PORT)]
        first = ending.enter_context(_pod(lab, "first", port_mappings=ports))
        second = ending.enter_context(_pod(lab, "second"))
        for family in families:
            ending.enter_context(_service(lab.node, SERVICE[family], first.addresses[family]))
        yield Pods(lab, first, second)


@contextmanager
def _pod(lab: Lab, name: str, **fields: Any) -> Iterator[Pod]:
    cri = lab.served.cri
    sandbox = cri.run(pod_config(name, **fields))
    try:
        network = cri.sandbox_status(sandbox).network
        addresses = {6 if ":" in ip else 4: ip for ip in (network.ip, *(more.ip for more in network.additional_ips))}
        netns = Netns(lab.dirs.netns / f"cri-{sandbox}")
        with _greeter(netns, name):
            yield Pod(netns, addresses)
    finally:
        cri.stop(sandbox)
        cri.remove(sandbox)


@contextmanager
def _greeter(netns: Netns, name: str) -> Iterator[None]:
    """Answer every connection to PORT with `name` while the block runs."""
    made = netns.call(lambda: socket.create_server(("::", PORT), family=socket.AF_INET6, dualstack_ipv6=True))

    def greet() -> None:
        while True:
            try:
                connection, _ = made.accept()
            except OSError:  # shut down
                return
            with connection:
                connection.sendall(name.encode())

    with made:
        thread = threading.Thread(target=greet, name=f"greeter {name}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            made.shutdown(socket.SHUT_RDWR)
            thread.join()


@contextmanager
def _service(node: Netns, address: str, backend: str) -> Iterator[None]:
    """Redirect a Service's address to a pod as kube-proxy does; connections of the pod to itself are masqueraded."""
    command, target = ("ip6tables", f"[{backend}]:{PORT}") if ":" in address else ("iptables", f"{backend}:{PORT}")
    rules = [
        *(f"{chain} -d {address} -p tcp --dport {PORT} -j DNAT --to-destination {target}" for chain in _REDIRECTING),
        f"POSTROUTING -s {backend} -d {backend} -j MASQUERADE",
    ]
    for rule in rules:
        node.run(f"{command} -t nat -I {rule}")
    try:
        yield
    finally:
        for rule in rules:
            node.run(f"{command} -t nat -D {rule}")

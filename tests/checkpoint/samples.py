"""Checkpoints as the server writes them."""

from typing import Any

from msgspec.structs import replace

from shim.checkpoint.model import NetworkIntent, SandboxCheckpoint

ID = "0123456789abcdef" * 4

CONFLIST: dict[str, Any] = {
    "cniVersion": "1.0.0",
    "name": "pod-net",
    "plugins": [
        {"type": "bridge", "bridge": "cni0", "isGateway": True, "mtu": 1450, "ipam": {"type": "host-local"}},
        {"type": "portmap", "capabilities": {"portMappings": True}, "ratio": 0.5, "nothing": None},
    ],
}

INTENT = NetworkIntent(
    conflist=CONFLIST,
    netns=f"/run/netns/cri-{ID}",
    ifname="eth0",
    args=[("IgnoreUnknown", "1"), ("K8S_POD_NAME", "web"), ("K8S_POD_NAMESPACE", "shop")],
    capabilities={"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""}]},
)

BEFORE_ADD = SandboxCheckpoint(
    sandbox_id=ID,
    config={"metadata": {"name": "web", "namespace": "shop", "uid": "u-1"}, "hostname": "büro-☃"},
    runtime_handler="",
    created_at=1_700_000_000_123_456_789,
    network=INTENT,
)

CONNECTED = replace(
    BEFORE_ADD,
    ready=True,
    network=replace(INTENT, result={"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.7/24", "interface": 2}]}),
)

RELEASED = replace(BEFORE_ADD, network=replace(INTENT, released=True))

HOST_NETWORK = replace(BEFORE_ADD, ready=True, network=None, runtime_handler="kata")


def numbered(number: int, *, attempt: int = 0) -> SandboxCheckpoint:
    """Return a checkpoint of the sandbox `number`."""
    return replace(CONNECTED, sandbox_id=f"{number:064x}", config={"metadata": {"attempt": attempt}})
